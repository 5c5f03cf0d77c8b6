"""Silences: what nobody wants to be told about for a while, who said so, and why."""

import secrets
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field, model_validator
from sqlalchemy import select, update

from lockstep.control.audit import record_within
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import newest_first, read_document, write_over
from lockstep.control.tables import SILENCES
from lockstep.errors import NotPresent
from lockstep.news import Matter
from lockstep.verdict import Frozen

Pattern = Field("*", min_length=1, max_length=300, description="such as nic:h3/*; * fits everything")


class Matchers(Frozen):
    """Which matters are meant: those that fit all of these."""

    component: str = Pattern
    job: str = Pattern
    fault_class: str = Field("*", alias="class", min_length=1, max_length=100)

    @model_validator(mode="before")
    @classmethod
    def _means_something(cls, given: Any) -> Any:  # Any: not yet checked
        names = ("component", "job", "class", "fault_class")
        if isinstance(given, dict) and not any(_says_something(given.get(name)) for name in names):
            raise ValueError("a silence over everything hides what matters: name a component, a job or a class")
        return given

    def fit(self, matter: Matter) -> bool:
        pairs = (
            (matter.component, self.component),
            (matter.job, self.job),
            (matter.fault_class, self.fault_class),
        )
        return all(fnmatchcase(value, pattern) for value, pattern in pairs)


class Silence(Frozen):
    """One silence, from when it was made until it ends."""

    id: str
    matchers: Matchers
    made_ns: int
    until_ns: int
    who: str
    why: str = ""


def _says_something(pattern: object) -> bool:
    """Return whether a pattern has more in it than wildcards, which fit everything or nearly so."""
    return isinstance(pattern, str) and bool(pattern.strip("*?"))


def create_silence(
    db: ControlDatabase, matchers: Matchers, *, until_ns: int, who: str, why: str, now_ns: int
) -> Silence:
    """Write a silence with its line in the audit, and return it."""
    made = Silence(id=secrets.token_hex(8), matchers=matchers, made_ns=now_ns, until_ns=until_ns, who=who, why=why)
    with db.begin() as connection:
        row = {"id": made.id, "until_ns": until_ns, "document": made.model_dump_json(by_alias=True)}
        write_over(connection, SILENCES, [row])
        record_within(connection, who=who, what="create_silence", subject=made.id, why=why, now_ns=now_ns)
    return made


def end_silence(db: ControlDatabase, silence_id: str, *, who: str, why: str, now_ns: int) -> Silence:
    """End a silence now; NotPresent where there is none or it has ended."""
    with db.begin() as connection:
        lasting = (SILENCES.c.id == silence_id) & (SILENCES.c.until_ns > now_ns)
        text = connection.scalar(select(SILENCES.c.document).where(lasting))
        if text is None:
            raise NotPresent(f"there is no silence {silence_id!r} that lasts")
        ended = read_document(Silence, text).model_copy(update={"until_ns": now_ns})
        row = {"until_ns": now_ns, "document": ended.model_dump_json(by_alias=True)}
        connection.execute(update(SILENCES).where(SILENCES.c.id == silence_id).values(row))
        record_within(connection, who=who, what="end_silence", subject=silence_id, why=why, now_ns=now_ns)
    return ended


def list_silences(
    db: ControlDatabase, *, limit: int = 100, before: tuple[int, str] | None = None, since_ns: int = 0
) -> list[Silence]:
    """Return silences that last beyond a moment, the last to end first."""
    query = select(SILENCES.c.document).where(SILENCES.c.until_ns > since_ns)
    with db.read() as connection:
        rows = connection.scalars(newest_first(query, SILENCES.c.until_ns, SILENCES.c.id, limit, before))
        return [read_document(Silence, text) for text in rows]
