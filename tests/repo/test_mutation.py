"""Mutants are drawn by seed, each is one change, and only a test that fails kills one."""

import ast
import sqlite3
from pathlib import Path

import pytest

from tests.mutation import Mutation, Result, choose, find_tests, judge, list_mutations, run_tests, tabulate

SOURCE = '''"""Ä module."""


def clip(value: int, low: int = 0) -> int:
    """Return 1."""
    if not value > low and low != 3:
        return f"{value + 1}"
    return value - low
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one module and its tests, which look at one branch of it only."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "clip.py").write_text("def clip(value):\n    return value > 3 or value == -9\n")
    (tmp_path / "tests" / "part").mkdir(parents=True)
    test = "from part.clip import clip\n\n\ndef test_clip():\n    assert clip(4) and not clip(3)\n"
    (tmp_path / "tests" / "part" / "test_clip.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path


def test_every_mutation_is_one_change_that_can_be_parsed() -> None:
    found = list_mutations("clip.py", SOURCE)
    for mutation in found:
        assert ast.dump(ast.parse(mutation.apply(SOURCE))) != ast.dump(ast.parse(SOURCE)), mutation
    assert sorted((one.line, one.before, one.after) for one in found) == [
        (4, "0", "(1)"),
        (6, "3", "(4)"),
        (6, "low != 3", "(low == 3)"),
        (6, "not value > low", "(value > low)"),
        (6, "not value > low and low != 3", "(not value > low or low != 3)"),
        (6, "value > low", "(value >= low)"),
        (7, "f'{value + 1}'", "None"),
        (8, "value - low", "(value + low)"),
        (8, "value - low", "None"),
    ]


def test_the_same_seed_draws_the_same_mutants(tree: Path) -> None:
    one, again = (choose(tree, ["part"], 1, 3) for _ in range(2))
    assert one == again
    assert len(one) == 3
    assert len(choose(tree, ["part"], 1, 99)) == len(list_mutations("", (tree / "part" / "clip.py").read_text()))


def test_tests_that_come_by_a_line_are_found_and_the_most_particular_first() -> None:
    coverage = sqlite3.connect(":memory:")
    coverage.executescript(
        """CREATE TABLE file (id, path); CREATE TABLE context (id, context);
        CREATE TABLE arc (file_id, context_id, tono);
        INSERT INTO file VALUES (1, '/tree/part/clip.py'), (2, '/tree/part/other.py');
        INSERT INTO context VALUES (1, 't.py::broad|run'), (2, 't.py::exact[1]|run'), (3, 't.py::x|setup'), (4, '');
        INSERT INTO arc VALUES (1, 1, 6), (1, 1, 7), (2, 1, 6), (1, 2, 6), (1, 3, 6), (1, 4, 6)"""
    )
    assert find_tests(coverage, "part/clip.py", range(6, 7)) == ["t.py::exact", "t.py::broad"]
    assert find_tests(coverage, "part/clip.py", range(7, 9)) == ["t.py::broad"]
    assert find_tests(coverage, "part/clip.py", range(9, 10)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("before", "outcome"), [("value > 3", "killed"), ("9", "survived")])
def test_only_a_mutant_that_a_test_fails_on_is_killed(tree: Path, before: str, outcome: str) -> None:
    file = tree / "part" / "clip.py"
    source = file.read_text()
    mutation = next(one for one in list_mutations("part/clip.py", source) if one.before == before)
    found = judge(tree, mutation, ["tests/part/test_clip.py"], lambda tests: run_tests(tree, tests, limit_s=300))
    assert found == outcome
    assert file.read_text() == source


@pytest.mark.parametrize(("code", "outcome"), [(None, "timed out"), (0, "survived"), (1, "killed")])
def test_time_out_is_told_apart(tree: Path, code: int | None, outcome: str) -> None:
    mutation = choose(tree, ["part"], 1, 1)[0][1]
    assert judge(tree, mutation, ["tests/part/test_clip.py"], lambda _: code) == outcome
    assert judge(tree, mutation, [], lambda _: code) == "untested"


def test_table_has_a_line_per_package() -> None:
    mutation = Mutation("a/b.py", 1, 0, 1, 1, "1", "(2)")
    table = tabulate([Result("a", mutation, "killed"), Result("b", mutation, "survived")])
    assert table.splitlines()[2:] == ["| a | 1 | 0 | 0 | 0 |", "| b | 0 | 1 | 0 | 0 |"]
