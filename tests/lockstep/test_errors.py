"""Every exception of ours is in the tree at the top of `errors.py`, and says where the fault is."""

import importlib
import pkgutil
import re

import lockstep.errors
from lockstep.errors import BadCapture, BadRows, BadSettings, BadTopology, LockstepError
from tests.conftest import REPO

PACKAGES = ("lockstep", "collector", "analyzer", "planner", "api", "cli")


def drawn_tree() -> dict[str, str]:
    """Return each exception of the drawing with the one above it."""
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


def existing_tree() -> dict[str, str]:
    """Return each exception that exists in any of our packages with the one that it descends from."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(REPO / package)], f"{package}."):
            importlib.import_module(module.name)
    found = {"LockstepError": "Exception"}
    waiting: list[type[LockstepError]] = [LockstepError]
    while waiting:
        parent = waiting.pop()
        ours = [child for child in parent.__subclasses__() if child.__module__.split(".")[0] in PACKAGES]
        found |= {child.__name__: parent.__name__ for child in ours}
        waiting += ours
    return found


def test_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    assert drawn_tree() == existing_tree()


def test_no_exception_is_defined_outside_of_the_file_with_the_tree() -> None:
    assert {name for name in existing_tree() if not hasattr(lockstep.errors, name)} == set()


def test_complaints_are_kept_and_listed() -> None:
    for error in (BadSettings(["first", "second"]), BadTopology(["first", "second"])):
        assert error.complaints == ["first", "second"]
        assert str(error).endswith("cannot be used:\n  - first\n  - second")


def test_only_the_places_that_are_known_are_named() -> None:
    error = BadRows("is null", table="transfers", column="nic", row=0)
    assert str(error) == "transfers, column nic, row 0: is null"
    assert (error.problem, error.table, error.column, error.row) == ("is null", "transfers", "nic", 0)
    assert str(BadCapture("is torn", file="steps.parquet")) == "steps.parquet: is torn"
    assert str(BadCapture("is torn", file="steps.parquet", row=3)) == "steps.parquet, row 3: is torn"
