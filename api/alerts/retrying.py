"""When a message is tried again, and what an answer means for it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from lockstep.clock import NS_PER_S

# Seconds from one try to the next, as Standard Webhooks propose; after the last the message has failed.
DELAYS_S = (0, 5, 5 * 60, 30 * 60, *(hours * 3600 for hours in (2, 5, 10, 14, 20, 24)))
JITTER = 0.2  # at most this much later, so that messages that failed together do not come back together
_LONGEST_WAIT_S = 24 * 3600  # a receiver that asks for more patience gets this much

Result = Literal["delivered", "failed", "refused", "gone"]


@dataclass(frozen=True, slots=True)
class Said:
    """What became of a try: `refused` is for good, `gone` is for the receiver as a whole."""

    result: Result
    sentence: str
    status: int | None = None
    wait_s: float | None = None  # what the receiver asked for


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered over HTTP; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body[:200].decode(errors="replace").strip()


def next_try_ns(event: str, tries: int, now_ns: int, wait_s: float | None = None) -> int | None:
    """Return when a message that was tried so often is due again; None once it has been tried often enough."""
    if tries >= len(DELAYS_S):
        return None
    # Seeded by the message, so that a restart computes the same.
    jitter = 1 + JITTER * random.Random(f"{event}/{tries}").random()  # noqa: S311  # no secret
    delay_s = max(DELAYS_S[tries] * jitter, min(wait_s or 0.0, _LONGEST_WAIT_S))
    return now_ns + round(delay_s * NS_PER_S)


def judge(answer: Answer, now_ns: int) -> Said:
    """Return what an HTTP answer means where the receiver has no rules of its own."""
    status = answer.status
    if 200 <= status < 300:
        return Said("delivered", f"HTTP {status}", status)
    if status == 410:
        return Said("gone", "HTTP 410: the receiver says that it is gone for good", status)
    if 300 <= status < 400:
        return Said("failed", f"HTTP {status}: it redirects, and redirects are not followed", status)
    wait_s = parse_retry_after(answer.headers.get("retry-after", ""), now_ns)
    return Said("failed", f"HTTP {status} {answer.text}".rstrip(), status, wait_s)


def parse_retry_after(value: str, now_ns: int) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as a number or a date; None: nothing readable.

    >>> parse_retry_after("120", 0), parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 0), parse_retry_after("x", 0)
    (120.0, 60.0, None)
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.fromtimestamp(now_ns / NS_PER_S, UTC)).total_seconds())
