"""Changes the source in small, seeded ways and tells which changes no test notices.

pytest -m 'not slow' -n 2 --dist loadfile --cov --cov-branch --cov-context=test --cov-report=
python -m tests.mutation --seed 1 --count 200 --packages analyzer planner api/ingest collector lockstep/store

Each mutant is one change of one file in a scratch copy of the tree. The first command writes down which test comes
by which line (`.coverage`); those that come by the changed line run on the mutant, the most particular ones first. A
mutant is killed when a test fails. One whose tests do not end in time is counted apart: that is no proof that
anything was asserted.
"""

import argparse
import ast
import copy
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pytest

REPO = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0  # for the tests of one mutant: a loop without an end has to be left
MOST_TESTS = (
    40  # of one mutant: whoever survives the tests that do little else is rarely killed by those that do much
)
PYTEST = (
    "-x",
    "-q",
    "-n",
    "0",
    "-m",
    "not slow",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:schemathesis",
    "--assert=plain",
)
# Half of the time of a mutant went into importing what no mutant changes.
PRELOADED = (
    "fastapi",
    "httpx",
    "hypothesis",
    "networkx",
    "numpy",
    "pyarrow.compute",
    "pydantic",
    "scipy.stats",
    "sqlalchemy",
)
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", ".lockstep")

Outcome = Literal["killed", "survived", "timed out", "untested"]
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Mutation:
    """One change: the expression on a line, and what stands there instead."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """Return the source with this one change; ast counts columns in bytes."""
        lines = source.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.after.encode() + tail).decode()


@dataclass(frozen=True)
class Result:
    package: str
    mutation: Mutation
    outcome: Outcome


def list_mutations(path: str, source: str) -> list[Mutation]:
    """Return every mutation that we know of a file, in the order of its lines."""
    tree = ast.parse(source)
    passed_over = set(_list_annotations(tree))
    found = [
        Mutation(path, *_place(node), ast.unparse(node), f"({ast.unparse(changed)})")
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and node not in passed_over
        for changed in _change(node)
    ]
    found += [
        Mutation(path, *_place(node.value), ast.unparse(node.value), "None")
        for node in ast.walk(tree)
        if isinstance(node, ast.Return) and node.value and not _is_none(node.value)
    ]
    return sorted(found, key=lambda one: (one.line, one.column, one.after))


def _place(node: ast.expr) -> tuple[int, int, int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _list_annotations(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in annotations, where changes mean nothing, and in f-strings, where they have no place."""
    for node in ast.walk(tree):
        notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for note in [*notes, node if isinstance(node, ast.JoinedStr) else None]:
            yield from ast.walk(note) if isinstance(note, ast.AST) else ()


def _change(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]):
            yield _with(node, ops=[_FLIPPED[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in _SWAPPED:
            yield _with(node, op=_SWAPPED[type(operator)]())
        case ast.BoolOp(op=ast.And()):
            yield _with(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)


def _with(node: ast.expr, **fields: object) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def choose(root: Path, packages: Sequence[str], seed: int, count: int) -> list[tuple[str, Mutation]]:
    """Return so many mutations of the packages together, each package with the same share, drawn by the seed."""
    drawn: list[tuple[str, Mutation]] = []
    for at, package in enumerate(packages):
        files = sorted((root / package).rglob("*.py"))
        every = [one for file in files for one in list_mutations(str(file.relative_to(root)), file.read_text())]
        share = count // len(packages) + (at < count % len(packages))
        chance = random.Random(f"{seed} {package}")  # a seed, no secret
        drawn += [(package, one) for one in chance.sample(every, min(share, len(every)))]
    return drawn


def find_tests(coverage: sqlite3.Connection, path: str, lines: range) -> list[str]:
    """Return the tests that come by one of the lines of a file, those that come by the fewest others first."""
    found = coverage.execute(
        """SELECT context FROM context JOIN arc ON arc.context_id = context.id
        WHERE context_id IN (SELECT context_id FROM arc JOIN file ON file.id = file_id
            WHERE path LIKE ? AND tono BETWEEN ? AND ?)
        GROUP BY context_id ORDER BY count(*)""",
        (f"%/{path}", lines.start, lines.stop - 1),
    )
    tests = [context.removesuffix("|run").partition("[")[0] for (context,) in found if context.endswith("|run")]
    return list(dict.fromkeys(tests))[:MOST_TESTS]


def judge(root: Path, mutation: Mutation, tests: list[str], run: Callable[[list[str]], int | None]) -> Outcome:
    """Apply a mutation to the copy, run the tests until one fails, and take the mutation back."""
    if not tests:
        return "untested"
    file = root / mutation.path
    source = file.read_text()
    file.write_text(mutation.apply(source))
    try:
        code = run(tests)
    finally:
        file.write_text(source)
    if code is None:
        return "timed out"
    return "killed" if code else "survived"


def run_tests(root: Path, tests: list[str], limit_s: float) -> int | None:
    """Return pytest's exit code, or None where it did not end in time."""
    process = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(root, tests))
    process.start()
    process.join(limit_s)
    code = process.exitcode
    process.kill()
    return code


def _run_pytest(root: Path, tests: list[str]) -> None:
    """Run the tests of a copy of the tree in a process that has imported nothing of any tree."""
    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    os.chdir(root)
    sys.path[:] = [str(root), *(folder for folder in sys.path if Path(folder).resolve() != REPO)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.exit(int(pytest.main([*PYTEST, *tests])))


def tabulate(results: Sequence[Result]) -> str:
    """Return how the mutants of each package ended, as a table in Markdown."""
    outcomes: tuple[Outcome, ...] = ("killed", "survived", "timed out", "untested")
    lines = [f"| package | {' | '.join(outcomes)} |", "| --- |" + " ---: |" * len(outcomes)]
    for package in dict.fromkeys(result.package for result in results):
        ended = Counter(result.outcome for result in results if result.package == package)
        lines.append(f"| {package} | {' | '.join(str(ended[outcome]) for outcome in outcomes)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge the mutants that the seed draws; print those that survive and the table, and write all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument("--json", type=Path, default=Path("mutation.json"))
    parser.add_argument("--coverage", type=Path, default=REPO / ".coverage", help="with a context for each test")
    parser.add_argument("--packages", nargs="+", required=True)
    asked = parser.parse_args(arguments)
    coverage = sqlite3.connect(f"{asked.coverage.resolve(strict=True).as_uri()}?mode=ro", uri=True)
    results: list[Result] = []
    for library in PRELOADED:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(REPO, root, ignore=NOT_COPIED, symlinks=True)
        for package, mutation in choose(root, asked.packages, asked.seed, asked.count):
            tests = find_tests(coverage, mutation.path, range(mutation.line, mutation.end_line + 1))
            outcome = judge(root, mutation, tests, lambda tests: run_tests(root, tests, asked.limit_s))
            results.append(Result(package, mutation, outcome))
            change = f"{mutation.path}:{mutation.line}: {mutation.before} -> {mutation.after}"
            sys.stdout.write(f"{outcome}: {change}\n")
            sys.stdout.flush()
    asked.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    sys.stdout.write(f"{tabulate(results)}\n")


if __name__ == "__main__":
    main()
