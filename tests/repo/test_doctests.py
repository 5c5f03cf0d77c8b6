"""Every example in a docstring runs and gives what it says."""

import doctest
from importlib import import_module

from tests.conftest import REPO
from tests.repo.files import PACKAGES


def modules_with_examples() -> list[str]:
    """Return them by their text, so that only they are imported, and only when their turn comes."""
    files = [file.relative_to(REPO) for package in PACKAGES for file in sorted((REPO / package).rglob("*.py"))]
    told = [file for file in files if ">>> " in (REPO / file).read_text(encoding="utf-8")]
    return [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in told]


def test_examples_give_what_they_say_and_stand_where_doctest_looks() -> None:
    assert {"lockstep.tables", "simulator.collectives", "cli.capture"} <= set(modules_with_examples())
    results = {name: doctest.testmod(import_module(name)) for name in modules_with_examples()}
    assert {name: result for name, result in results.items() if result.failed or not result.attempted} == {}
