"""Tests are collected in the tier that they are marked for, and in no other."""

import pytest

from tests.tiers import long_except, may_hold

PLAIN = "def test_a() -> None: ..."
ALL_SLOW = f"pytestmark = [\n    pytest.mark.needs_root,\n    pytest.mark.slow,\n]\n{PLAIN}"
SOME_SLOW = f"@pytest.mark.slow\n{PLAIN}"
TWO_KINDS = "def test_a(store: Store) -> None: ..."
LONG = f"@pytest.mark.parametrize('a', long_except([1], [1, 2]))\n{PLAIN}"


@pytest.mark.parametrize(
    ("chosen", "held"),
    [
        ("not slow", {PLAIN, SOME_SLOW, TWO_KINDS, LONG}),
        ("slow and not long", {ALL_SLOW, SOME_SLOW, TWO_KINDS}),
        ("long", {LONG}),
        ("", {PLAIN, ALL_SLOW, SOME_SLOW, TWO_KINDS, LONG}),
    ],
)
def test_only_files_without_a_test_of_the_tier_are_passed_over(chosen: str, held: set[str]) -> None:
    assert {source for source in (PLAIN, ALL_SLOW, SOME_SLOW, TWO_KINDS, LONG) if may_hold(source, chosen)} == held


def test_all_cases_but_those_that_are_kept_are_long_and_those_have_to_be_there() -> None:
    kept, other = long_except([1], [1, 2])
    assert kept == 1
    assert (other.values, [mark.name for mark in other.marks]) == ((2,), ["slow", "long"])
    with pytest.raises(AssertionError, match=r"no such case: \[3\]"):
        long_except([3], [1, 2])
