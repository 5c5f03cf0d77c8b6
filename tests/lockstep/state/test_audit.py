"""What was done is written down, and stays."""

import pytest

from lockstep.errors import BadInput
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import AuditLine, list_audit, record


def test_lines_come_back_newest_first(db: ControlDatabase) -> None:
    record(db, who="ada", what="approve", subject="decision d1", why="agreed with Zoë", now_ns=5)
    record(db, who="bob", what="undo", subject="decision d1", why="", now_ns=4)
    assert list_audit(db, 10) == [
        AuditLine(id=2, ts_ns=4, who="bob", what="undo", subject="decision d1", why=""),
        AuditLine(id=1, ts_ns=5, who="ada", what="approve", subject="decision d1", why="agreed with Zoë"),
    ]


def test_list_is_as_long_as_asked(db: ControlDatabase) -> None:
    for number in range(3):
        record(db, who="ada", what="look", subject=str(number), why="", now_ns=number)
    assert [line.subject for line in list_audit(db, 2)] == ["2", "1"]


def test_text_that_no_database_can_hold_is_the_callers_fault(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="cannot hold this value"):
        record(db, who="ada", what="look", subject="h3", why="half a character: \ud800", now_ns=1)


def test_list_without_lines_is_refused(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="limit is -1"):
        list_audit(db, -1)
