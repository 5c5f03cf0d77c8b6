"""Every example in a docstring runs and gives what it says."""

import doctest
from importlib import import_module

import pytest

from tests.conftest import REPO

PACKAGES = ("lockstep", "collector", "importers", "simulator", "analyzer", "planner", "api", "cli")


def modules_with_examples() -> list[str]:
    """Return them by their text, so that only they are imported, and only when their turn comes."""
    files = [file.relative_to(REPO) for package in PACKAGES for file in sorted((REPO / package).rglob("*.py"))]
    told = [file for file in files if ">>> " in (REPO / file).read_text(encoding="utf-8")]
    return [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in told]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0, "its examples are where doctest does not look"
    assert failed == 0


def test_examples_are_found() -> None:
    assert {"lockstep.tables", "simulator.collectives", "cli.capture"} <= set(modules_with_examples())
