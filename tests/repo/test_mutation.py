"""Mutants are drawn by seed, each is one change, and only a test that fails kills one."""

import ast
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


def test_nearest_tests_come_first(tree: Path) -> None:
    assert find_tests(tree, "part/clip.py") == ["tests/part/test_clip.py", "tests/part"]
    assert find_tests(tree, "part/deep/other.py") == ["tests/part"]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "outcome"), [("value > 3", "killed"), ("9", "survived")])
def test_only_a_mutant_that_a_test_fails_on_is_killed(tree: Path, before: str, outcome: str) -> None:
    file = tree / "part" / "clip.py"
    source = file.read_text()
    mutation = next(one for one in list_mutations("part/clip.py", source) if one.before == before)
    assert judge(tree, mutation, lambda tests: run_tests(tree, tests, limit_s=300)) == outcome
    assert file.read_text() == source


@pytest.mark.parametrize(("code", "outcome"), [(None, "timed out"), (5, "untested"), (0, "survived"), (1, "killed")])
def test_time_out_and_absence_of_tests_are_told_apart(tree: Path, code: int | None, outcome: str) -> None:
    mutation = choose(tree, ["part"], 1, 1)[0][1]
    assert judge(tree, mutation, lambda _: code) == outcome


def test_table_has_a_line_per_package() -> None:
    mutation = Mutation("a/b.py", 1, 0, 1, 1, "1", "(2)")
    table = tabulate([Result("a", mutation, "killed"), Result("b", mutation, "survived")])
    assert table.splitlines()[2:] == ["| a | 1 | 0 | 0 | 0 |", "| b | 0 | 1 | 0 | 0 |"]
