"""Detail requests are read with care, carried out once, and never mean less than what a process does by itself."""

from typing import Any

import pytest

from collector.nccl.detail import Detail, MinutesRequests, read_details, wanted_detail
from lockstep import wire
from lockstep.batches import DetailRequest

USUAL = Detail(wire.TRANSFERS, 655)


def request(kind: str, name: str = "w", expires_ns: int = 100, **details: Any) -> DetailRequest:
    return DetailRequest(id=name, host="h0", kind=kind, details=details, expires_ns=expires_ns)


def wanted(*requests: DetailRequest, job: str = "j", rank: int | None = 3) -> Detail:
    return wanted_detail(read_details(requests, 50), USUAL, job, rank)


def test_detail_is_the_most_that_is_requested() -> None:
    steps = request("detail", job="j", level="steps", share=0.5)
    more = request("detail", job="j", level="transfers", share=1.0, ranks=[3])
    assert wanted(steps, more) == Detail(wire.STEPS, 65_536)
    assert wanted(steps, more, rank=4) == Detail(wire.STEPS, 32_768)
    assert wanted(steps, more, job="other") == USUAL
    assert wanted(request("detail", job="j", level="operations", share=0)) == USUAL
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
def test_detail_that_makes_no_sense_is_not_requested(details: dict[str, Any]) -> None:
    assert wanted(request("detail", **details)) == USUAL


def test_expired_detail_is_not_requested() -> None:
    assert wanted(request("detail", expires_ns=50, job="j", level="steps")) == USUAL


def test_last_minutes_are_requested_once_by_each_name() -> None:
    requests = MinutesRequests()
    one, other = request("last_minutes", "a", job="j", minutes=2), request("last_minutes", "b", job="j")
    assert [each.duration_ns // 10**9 for each in requests.new([one, other], 50)] == [120, 600]
    assert requests.new([one, other], 60) == []
    assert requests.new([one], 100) == []  # expired


@pytest.mark.parametrize("minutes", [0, 11, "2", True, None])
def test_minutes_that_are_not_kept_are_not_sent(minutes: object) -> None:
    assert MinutesRequests().new([request("last_minutes", job="j", minutes=minutes)], 0) == []
