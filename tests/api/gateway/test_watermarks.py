"""How far each agent and boot has been acknowledged survives a restart, and is forgotten after a month."""

from pathlib import Path

import pytest

from api.gateway.log import Entry
from api.gateway.watermarks import Watermarks
from tests.builders import SECOND, T0

DAY_NS = 86_400 * SECOND


def entry(agent: str, boot: str, number: int, received_ns: int = T0) -> Entry:
    return Entry(agent, boot, number, received_ns, b"")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watermarks.json"


def test_agent_that_was_never_heard_of_stands_at_zero(file: Path) -> None:
    marks = Watermarks(file)
    assert marks.get("h0", "b1") == 0
    assert marks.is_new(entry("h0", "b1", 1))
    assert marks.last_segment == 0


def test_batch_is_new_once(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "b1", 1))
    assert not marks.is_new(entry("h0", "b1", 1))
    assert marks.is_new(entry("h0", "b1", 2))


def test_agents_and_boots_are_counted_apart(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "b1", 5))
    assert (marks.get("h0", "b1"), marks.get("h0", "b2"), marks.get("h1", "b1")) == (5, 0, 0)


def test_older_batch_never_moves_the_mark_back(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "b1", 5))
    marks.advance(entry("h0", "b1", 3))
    assert marks.get("h0", "b1") == 5


def test_marks_and_the_last_segment_survive_a_restart(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "b1", 5))
    marks.advance(entry("hôte/ü", "b\n2", 7))
    marks.last_segment = 42
    marks.save(T0)
    again = Watermarks(file)
    assert (again.get("h0", "b1"), again.get("hôte/ü", "b\n2"), again.last_segment) == (5, 7, 42)


def test_what_was_not_saved_is_not_remembered(file: Path) -> None:
    marks = Watermarks(file)
    marks.save(T0)
    marks.advance(entry("h0", "b1", 5))
    assert Watermarks(file).get("h0", "b1") == 0


def test_boot_that_was_silent_for_a_month_is_forgotten_and_the_others_stay(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "old", 5, received_ns=T0))
    marks.advance(entry("h0", "new", 3, received_ns=T0 + DAY_NS))
    marks.save(T0 + 30 * DAY_NS - 1)
    assert Watermarks(file).get("h0", "old") == 5
    marks.save(T0 + 30 * DAY_NS)
    assert (marks.get("h0", "old"), marks.get("h0", "new")) == (0, 3)
    assert (Watermarks(file).get("h0", "old"), Watermarks(file).get("h0", "new")) == (0, 3)
