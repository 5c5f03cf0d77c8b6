"""Every line of the audit is chained to the one before: what is changed or removed later shows."""

import pytest
from sqlalchemy import Executable, delete, insert, update

from lockstep.errors import LockstepError
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit, record, verify_audit
from lockstep.state.tables import AUDIT, AUDIT_CHAIN

LINE = {"ts_ns": 5, "who": "eve", "what": "approve", "subject": "d1", "why": ""}


def write(db: ControlDatabase, *whys: str) -> None:
    for why in whys:
        record(db, who="ann", what="approve", subject="d1", why=why, now_ns=7)


def change(db: ControlDatabase, *statements: Executable) -> None:
    with db.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def test_audit_that_nobody_touched_is_whole_also_behind_lines_of_an_earlier_release(db: ControlDatabase) -> None:
    assert verify_audit(db) == (0, "")
    change(db, insert(AUDIT).values(LINE))
    write(db, "a", "b")
    lines, first = verify_audit(db)
    write(db, "c")
    assert (lines, verify_audit(db)[0], len(list_audit(db, 10))) == (2, 3, 4)
    assert verify_audit(db)[1] != first


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            [update(AUDIT).where(AUDIT.c.id == 2).values(who="bob")],
            "line 2 of the audit, or one before it, is not as",
        ),
        ([delete(AUDIT).where(AUDIT.c.id == 2)], "line 2 of the audit was removed"),
        ([delete(each).where(each.c.id == 2) for each in (AUDIT, AUDIT_CHAIN)], "line 3 of the audit, or one"),
        ([insert(AUDIT).values(LINE)], "line 5 of the audit was written past the chain"),
        ([delete(AUDIT_CHAIN).where(AUDIT_CHAIN.c.id == 3)], "line 3 of the audit was written past the chain"),
    ],
    ids=["changed", "removed", "removed with its digest", "added", "digest removed"],
)
def test_line_that_was_changed_removed_or_added_is_named(
    db: ControlDatabase, statements: list[Executable], said: str
) -> None:
    write(db, "a", "b", "c", "d")
    change(db, *statements)
    with pytest.raises(LockstepError, match=said):
        verify_audit(db)
