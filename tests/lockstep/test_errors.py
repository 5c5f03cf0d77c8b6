"""Every exception of ours is in the tree at the top of `errors.py`, and says where the fault is."""

import re
from pathlib import Path

import lockstep.errors
from lockstep.errors import BadCapture, BadRows, BadSettings, BadTopology
from tests.conftest import REPO
from tests.repo.files import PACKAGES


def drawn_tree() -> dict[str, str]:
    above: list[str] = []
    parents: dict[str, str] = {}
    for line in (lockstep.errors.__doc__ or "").splitlines():
        match = re.match(r"((?:[│├└─ ]{4})*)([A-Z]\w+)", line)
        if not match or (not match[1] and match[2] != "LockstepError"):
            continue  # a sentence, not a branch
        depth = len(match[1]) // 4
        parents[match[2]] = above[depth - 1] if depth else "Exception"
        above[depth:] = [match[2]]
    return parents


def existing_tree(files: list[Path]) -> dict[str, str]:
    classes = re.compile(r"^\s*class (\w+)\((?:\w+\.)?(\w+)", re.MULTILINE)
    bases = dict(pair for file in files for pair in classes.findall(file.read_text(encoding="utf-8")))
    found = {"LockstepError": bases["LockstepError"]}
    while more := {name: base for name, base in bases.items() if base in found and name not in found}:
        found |= more
    return found


def test_tree_in_the_docstring_is_that_of_all_exceptions_and_these_are_all_in_its_file() -> None:
    everywhere = [file for package in PACKAGES for file in (REPO / package).rglob("*.py")]
    assert drawn_tree() == existing_tree(everywhere) == existing_tree([Path(lockstep.errors.__file__)])


def test_complaints_are_kept_and_listed() -> None:
    for kind, begin in ((BadSettings, "these settings"), (BadTopology, "this topology")):
        error = kind(["first", "second"])
        assert error.complaints == ["first", "second"]
        assert str(error) == f"{begin} cannot be used:\n  - first\n  - second"


def test_only_the_places_that_are_known_are_named() -> None:
    error = BadRows("is null", table="transfers", column="nic", row=0)
    assert str(error) == "transfers, column nic, row 0: is null"
    assert (error.problem, error.table, error.column, error.row) == ("is null", "transfers", "nic", 0)
    assert str(BadCapture("is torn", file="steps.parquet")) == "steps.parquet: is torn"
    assert str(BadCapture("is torn", file="steps.parquet", row=3)) == "steps.parquet, row 3: is torn"
