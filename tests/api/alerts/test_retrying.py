"""When a message is tried again, and what answers mean."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.alerts.retrying import DELAYS_S, JITTER, Answer, judge, next_try_ns, parse_retry_after
from lockstep.clock import NS_PER_S


def test_schedule_is_that_of_standard_webhooks() -> None:
    assert list(DELAYS_S[:4]) == [0, 5, 300, 1800]
    assert [delay / 3600 for delay in DELAYS_S[4:]] == [2, 5, 10, 14, 20, 24]
    assert next_try_ns("evt", len(DELAYS_S), 0) is None


@settings(max_examples=100)
@given(st.text(max_size=20), st.integers(1, len(DELAYS_S) - 1), st.floats(0, 10**6))
def test_nobody_is_tried_earlier_than_the_schedule_or_the_receiver_says(
    event: str, tries: int, wait_s: float
) -> None:
    due_ns = next_try_ns(event, tries, 0, wait_s)
    assert due_ns is not None
    asked_s = min(wait_s, 24 * 3600)
    assert due_ns / NS_PER_S >= max(DELAYS_S[tries], asked_s) - 1e-6
    assert due_ns / NS_PER_S <= max(DELAYS_S[tries] * (1 + JITTER), asked_s) + 1e-6
    assert due_ns == next_try_ns(event, tries, 0, wait_s), "a restart computes the same"


def test_messages_that_failed_together_do_not_come_back_together() -> None:
    assert len({next_try_ns(f"evt_{number}", 2, 0) for number in range(20)}) == 20


@pytest.mark.parametrize(
    ("status", "result"),
    [(200, "delivered"), (204, "delivered"), (301, "failed"), (307, "failed"), (404, "failed"), (410, "gone")],
)
def test_status_decides(status: int, result: str) -> None:
    assert judge(Answer(status, {}, b""), 0).result == result


def test_receivers_words_are_in_the_sentence_and_cut() -> None:
    said = judge(Answer(500, {"retry-after": "7"}, b"x" * 10_000), 0)
    assert (said.wait_s, len(said.sentence)) == (7.0, len("HTTP 500 ") + 200)


@pytest.mark.parametrize("value", ["", "-5", "soon", "1e3", "٣", "Thu, 99 Jan 1970 00:00:00 GMT"])
def test_unreadable_wish_for_patience_is_none(value: str) -> None:
    assert parse_retry_after(value, 0) is None


def test_date_in_the_past_is_now_and_no_number_is_too_long() -> None:
    assert parse_retry_after("Thu, 01 Jan 1970 00:00:10 GMT", 20 * NS_PER_S) == 0.0
    assert parse_retry_after("9" * 400, 0) == 999_999_999.0
