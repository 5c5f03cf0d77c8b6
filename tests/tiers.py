"""Which tests run when, and beside which others: the tiers of CONTRIBUTING.md.

Fast tests are unmarked. `slow` ones kill, cut off and start whole systems. `long` ones are slow too, and are the same
promises again with other seeds, shapes and recordings: they run before a release.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

# What the tests ask for that run on both kinds of a database; their files hold slow tests without naming the marker.
_ON_TWO_KINDS = re.compile(r"\b(store: Store|store_url|control_url|db: ControlDatabase|db_url)\b")


def two_kinds(light: str, real: str) -> list[Any]:  # Any: pytest does not name its own type
    """Return the kinds of a database to parametrise a fixture with: the one without a server, and the slow one."""
    return [light, pytest.param(real, marks=pytest.mark.slow)]


def long_except(kept: Collection[T], cases: Iterable[T]) -> list[Any]:  # Any: pytest does not name its own type
    """Return the cases to parametrise a test with; all but those that are kept are long."""
    chosen = list(cases)
    missing = [case for case in kept if case not in chosen]
    assert not missing, f"no such case: {missing}"
    return [
        case if case in kept else pytest.param(case, marks=(pytest.mark.slow, pytest.mark.long)) for case in chosen
    ]


def may_hold(source: str, chosen: str) -> bool:
    """Return whether a file may hold tests that the expression behind -m chooses.

    A file is read faster than imported: the fast tier need not import torch, a browser and a fuzzer for files that
    are slow from end to end, nor the slow tier a thousand files without a slow test.
    """
    if chosen == "not slow":
        return not re.search(
            r"^pytestmark = \[?\s*(pytest\.mark\.needs_root,\s*)?pytest\.mark\.slow", source, re.MULTILINE
        )
    if chosen == "slow and not long":
        return "mark.slow" in source or bool(_ON_TWO_KINDS.search(source))
    return chosen != "long" or "mark.long" in source or "long_except" in source
