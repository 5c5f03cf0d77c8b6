"""An update is worth a message when a person would read it; it comes soon when it is worse, and never in a storm."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.alerts.updating import MOST_DOUBLINGS, is_news, patience_ns
from lockstep.news import Matter, Thread
from lockstep.verdict import Impact
from tests.api.alerts.build import matter
from tests.builders import T0

GROUP_NS = 30 * 10**9


def slowed(ratio: float | None, **changes: Any) -> Matter:
    return matter(impact=Impact(step_time_ratio=ratio, ranks_waiting=1), **changes)


def thread(told: Matter, number: int) -> Thread:
    return Thread(target="ops", subject=told.subject, key=told.subject, number=number, told_ns=T0, matter=told)


@pytest.mark.parametrize(
    ("told", "now", "expected"),
    [
        (1.2, 1.4, True),
        (1.2, 1.39, False),
        (1.4, 1.2, True),
        (1.4, 1.25, False),
        (1.02, 1.1, False),  # twice the loss, and nobody would get up for it
        (1.0, 1.2, True),
        (None, 1.2, True),
        (None, 1.1, False),
        (3.0, None, False),  # unknown is not mended
    ],
)
def test_impact_is_news_by_a_step(told: float | None, now: float | None, expected: bool) -> None:
    assert is_news(slowed(told), slowed(now)) is expected


@pytest.mark.parametrize(
    "change", [{"confidence": 0.4}, {"reason": "in other words"}, {"coverage": 0.5}, {"last_seen_ns": T0 + 1}]
)
def test_figures_that_change_with_each_look_are_no_news(change: dict[str, Any]) -> None:
    assert not is_news(matter(), matter(**change))


@pytest.mark.parametrize(
    "now",
    [
        slowed(1.42, grade="isolate", component="gpu:h9/0"),
        slowed(1.42, grade="alert", fault_class="comm_hang"),
        slowed(1.9, grade="alert"),
    ],
    ids=["grade", "standstill", "impact"],
)
def test_what_is_worse_never_waits_longer(now: Matter) -> None:
    assert patience_ns(thread(matter(grade="alert"), 40), now, GROUP_NS) == GROUP_NS


def test_what_is_not_worse_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    waits = [patience_ns(thread(matter(), told), matter(component="gpu:h9/0"), GROUP_NS) for told in range(9)]
    assert [wait // GROUP_NS for wait in waits] == [1, 1, 2, 4, 8, 16, 32, 32, 32]
    assert waits[-1] == GROUP_NS << MOST_DOUBLINGS


def test_changed_proposal_is_not_held_back() -> None:
    asked = matter().model_copy(update={"family": "decision"})
    assert patience_ns(thread(asked, 9), asked.model_copy(update={"mark": "other"}), GROUP_NS) == GROUP_NS


@settings(max_examples=100, deadline=None)
@given(st.floats(0.5, 10), st.floats(0.5, 10))
def test_what_was_told_of_an_impact_is_not_news_the_other_way_round_at_once(told: float, now: float) -> None:
    if is_news(slowed(told), slowed(now)):
        assert abs(now - told) >= 0.19, "so that what wavers by less is told once"
    assert not is_news(slowed(now), slowed(now))
