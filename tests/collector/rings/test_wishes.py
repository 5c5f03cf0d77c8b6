"""Wishes are read with care, carried out once, and never mean less than what a process does by itself."""

from typing import Any

import pytest

from collector.rings.wishes import Detail, MinutesWishes, read_details, wanted_detail
from lockstep import wire
from lockstep.wish import Wish

USUAL = Detail(wire.TRANSFERS, 655)


def wish(kind: str, name: str = "w", expires_ns: int = 100, **details: Any) -> Wish:
    return Wish(id=name, host="h0", kind=kind, details=details, expires_ns=expires_ns)


def wanted(*wishes: Wish, job: str = "j", rank: int | None = 3) -> Detail:
    return wanted_detail(read_details(wishes, 50), USUAL, job, rank)


def test_detail_is_the_most_that_is_wished() -> None:
    steps = wish("detail", job="j", level="steps", share=0.5)
    more = wish("detail", job="j", level="transfers", share=1.0, ranks=[3])
    assert wanted(steps, more) == Detail(wire.STEPS, 65_536)
    assert wanted(steps, more, rank=4) == Detail(wire.STEPS, 32_768)
    assert wanted(steps, more, job="other") == USUAL
    assert wanted(wish("detail", job="j", level="operations", share=0)) == USUAL
    assert wanted(more, rank=None) == USUAL


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"job": 7, "level": "steps"},
        {"job": "j", "level": "trace"},
        {"job": "j", "level": "steps", "share": 2},
        {"job": "j", "level": "steps", "share": "all"},
        {"job": "j", "level": "steps", "ranks": "3"},
        {"job": "j", "level": ["steps"]},
    ],
)
def test_detail_that_makes_no_sense_is_not_wished(details: dict[str, Any]) -> None:
    assert wanted(wish("detail", **details)) == USUAL


def test_expired_detail_is_not_wished() -> None:
    assert wanted(wish("detail", expires_ns=50, job="j", level="steps")) == USUAL


def test_last_minutes_are_wished_once_by_each_name() -> None:
    wishes = MinutesWishes()
    one, other = wish("last_minutes", "a", job="j", minutes=2), wish("last_minutes", "b", job="j")
    assert [each.span_ns // 10**9 for each in wishes.new([one, other], 50)] == [120, 600]
    assert wishes.new([one, other], 60) == []
    assert wishes.new([one], 100) == []  # expired


@pytest.mark.parametrize("minutes", [0, 11, "2", True, None])
def test_minutes_that_are_not_kept_are_not_sent(minutes: object) -> None:
    assert MinutesWishes().new([wish("last_minutes", job="j", minutes=minutes)], 0) == []
