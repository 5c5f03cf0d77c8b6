"""Rows wait for the next batch, within a bound, and what does not fit is counted."""

import pytest

from collector import agent as gathering_module
from collector.agent import Gathering
from collector.sources.source import Reading
from lockstep.clock import ManualClock
from lockstep.records import Event
from tests.builders import SECOND, T0, make, rows


def test_rows_beyond_the_bound_are_dropped_and_counted_until_somebody_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering_module, "MOST_ROWS", 5)
    gathering = Gathering({}, ManualClock(T0))
    reading = Reading({"events": rows(make(Event), make(Event))}, watermark_ns=T0)
    for _ in range(4):
        gathering.put("a", reading, period_s=1.0)
    assert gathering.take().tables["events"].num_rows == 4
    assert gathering.dropped_rows == 4
    gathering.put("a", reading, period_s=1.0)
    assert gathering.take().tables["events"].num_rows == 2
    assert gathering.dropped_rows == 4


def test_source_that_is_read_seldom_holds_back_nobodys_watermark() -> None:
    gathering = Gathering({}, ManualClock(T0))
    gathering.put("connections", Reading({}, watermark_ns=T0 - 9 * SECOND), period_s=10.0)
    assert gathering.take().watermark_ns is None
    gathering.put("gpu", Reading({}, watermark_ns=T0 - SECOND), period_s=2.0)
    gathering.put("links", Reading({}, watermark_ns=T0), period_s=1.0)
    assert gathering.take().watermark_ns == T0 - SECOND
