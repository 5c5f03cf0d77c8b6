"""Receivers of alerts that were made through the API, and how every receiver answers.

In the control database the address and the secrets of a receiver are sealed, the rest is in clear.
"""

import json
from typing import Any, Self, TypeVar

import structlog
from pydantic import Field, ValidationError, model_validator
from sqlalchemy import Connection, delete, func, insert, select, update

from lockstep.alerts import MOST_TARGETS, Target
from lockstep.errors import BadInput, NotPresent, SealBroken, StoreVersionMismatch
from lockstep.state.database import ControlDatabase, Keys
from lockstep.state.documents import insert_into, read_by_id, read_document, record_within, row_of, write_over
from lockstep.state.tables import ALERT_TARGETS, ALERT_THREADS, DELIVERIES, TARGET_HEALTH
from lockstep.verdict import Frozen

_log = structlog.get_logger("alerts")

_HIDDEN = ("url", "secrets")  # the path of a chat's webhook is as good as a password
_SEALED = "sealed"
_DOCUMENTS = select(ALERT_TARGETS.c.id, ALERT_TARGETS.c.document).order_by(ALERT_TARGETS.c.id)

Kind = TypeVar("Kind", bound=Target)


class LostTarget(Target):
    """A receiver whose address and secrets cannot be opened, so nothing is sent to it."""

    lost_because: str = Field(description="one sentence: which key is missing, and what to do")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:  # what would be checked is what was lost
        return self

    @property
    def shown_address(self) -> str:
        return ""


class Health(Frozen):
    """How a receiver answers."""

    since_ns: int = Field(description="since when it is known; what ended before is not sent to it")
    last_success_ns: int | None = None
    last_failure_ns: int | None = None
    failures_in_row: int = 0
    last_reply: str = Field("", description="what became of the last try")
    disabled_because: str | None = Field(None, description="why nothing is sent until somebody enables it again")


def create_target(db: ControlDatabase, target: Target, *, who: str, why: str, now_ns: int) -> None:
    """Write a new receiver; BadInput where the name is taken or there are too many."""
    with db.begin() as connection:
        if connection.scalar(select(ALERT_TARGETS.c.id).where(ALERT_TARGETS.c.id == target.name)):
            raise BadInput(f"there is a target {target.name!r} already")
        if (connection.scalar(select(func.count()).select_from(ALERT_TARGETS)) or 0) >= MOST_TARGETS:
            raise BadInput(f"there are {MOST_TARGETS} targets already, which is as many as can be")
        row = {"id": target.name, "created_ns": now_ns, "document": write_target(db.keys, target)}
        connection.execute(insert(ALERT_TARGETS).values(row))
        record_within(connection, who=who, what="create_target", subject=target.name, why=why, now_ns=now_ns)


def change_target(db: ControlDatabase, target: Target, *, who: str, why: str, now_ns: int) -> None:
    """Write over a receiver; NotPresent where there is none of its name."""
    with db.begin() as connection:
        mine = update(ALERT_TARGETS).where(ALERT_TARGETS.c.id == target.name)
        if not connection.execute(mine.values(document=write_target(db.keys, target))).rowcount:
            raise NotPresent(f"there is no target {target.name!r}")
        record_within(connection, who=who, what="change_target", subject=target.name, why=why, now_ns=now_ns)


def delete_target(db: ControlDatabase, name: str, *, who: str, why: str, now_ns: int) -> None:
    """Forget a receiver, what it was told and what it was about to be told."""
    with db.begin() as connection:
        if not connection.execute(delete(ALERT_TARGETS).where(ALERT_TARGETS.c.id == name)).rowcount:
            raise NotPresent(f"there is no target {name!r}")
        connection.execute(delete(TARGET_HEALTH).where(TARGET_HEALTH.c.id == name))
        connection.execute(delete(ALERT_THREADS).where(ALERT_THREADS.c.target == name))
        connection.execute(delete(DELIVERIES).where(DELIVERIES.c.target == name))
        record_within(connection, who=who, what="delete_target", subject=name, why=why, now_ns=now_ns)


def list_targets(db: ControlDatabase) -> list[Target]:
    """Return the receivers that were made through the API, by name; one whose key is missing as a LostTarget."""
    with db.read() as connection:
        rows = connection.execute(_DOCUMENTS).all()
    return [read_target(db.keys, name, text) for name, text in rows]


def seal_targets(db: ControlDatabase) -> None:
    """Seal what lies in clear or under an older key, all of it or nothing; what cannot be sealed is said and stays.

    Done at each start, which makes it the way of a new release and of a new key. It changes nothing the second time.
    """
    with db.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA secure_delete = ON")  # else the clear text stays in the file's gaps
        rows = connection.execute(_DOCUMENTS.with_for_update()).all()
        old = [(name, text) for name, text in rows if not is_sealed_anew(db.keys, name, text)]
        for name, text in old:
            _seal(connection, db.keys, name, text)
    if old:
        db.empty_log()


def list_health(db: ControlDatabase) -> dict[str, Health]:
    """Return how receivers answer, by name."""
    return read_by_id(db, Health, select(TARGET_HEALTH.c.id, TARGET_HEALTH.c.document))


def meet_targets(db: ControlDatabase, names: list[str], now_ns: int) -> None:
    """Write down since when receivers are known, for those that were not."""
    rows = [row_of(Health(since_ns=now_ns), "since_ns", id=name) for name in sorted(names)]
    if rows:
        with db.begin() as connection:
            connection.execute(insert_into(connection, TARGET_HEALTH).on_conflict_do_nothing(), rows)


def enable_target(db: ControlDatabase, name: str, *, who: str, why: str, now_ns: int) -> None:
    """Send to a receiver again that was disabled."""
    with db.begin() as connection:
        health = read_health(connection, name, now_ns)
        write_health(connection, name, health.model_copy(update={"disabled_because": None, "failures_in_row": 0}))
        record_within(connection, who=who, what="enable_target", subject=name, why=why, now_ns=now_ns)


def read_health(connection: Connection, name: str, now_ns: int) -> Health:
    """Return how a receiver answers, within a transaction."""
    text = connection.scalar(select(TARGET_HEALTH.c.document).where(TARGET_HEALTH.c.id == name))
    return Health(since_ns=now_ns) if text is None else read_document(Health, text)


def write_health(connection: Connection, name: str, health: Health) -> None:
    write_over(connection, TARGET_HEALTH, [row_of(health, "since_ns", id=name)])


def write_target(keys: Keys, target: Target) -> str:
    """Return the document of a receiver; its name is sealed in, so that no row opens in another's place."""
    document = target.model_dump(mode="json")
    hidden = {name: document.pop(name) for name in _HIDDEN}
    sealed = keys.seal(json.dumps(hidden).encode(), _about(target.name))
    return json.dumps(document | {_SEALED: sealed}, ensure_ascii=False)


def read_target(keys: Keys, name: str, text: str) -> Target:
    """Return the receiver of a document, also of one in clear; a LostTarget where its key is not there."""
    document = _parse(name, text)
    if (sealed := document.pop(_SEALED, None)) is None:
        return _checked(Target, name, document)
    try:
        hidden = json.loads(keys.unseal(str(sealed), _about(name)))
    except SealBroken as broken:
        because = (
            f"the address and the secrets of {name} cannot be opened: {broken}; "
            "put the key back, or give `url` and `secrets` anew"
        )
        return _checked(LostTarget, name, document | {"lost_because": because})
    return _checked(Target, name, document | hidden)


def is_sealed_anew(keys: Keys, name: str, text: str) -> bool:
    """Return whether a document is sealed with the newest key already."""
    sealed = _parse(name, text).get(_SEALED)
    return sealed is not None and keys.is_newest(str(sealed))


def _seal(connection: Connection, keys: Keys, name: str, text: str) -> None:
    found = read_target(keys, name, text)
    if isinstance(found, LostTarget):
        _log.error("nothing is sent to a receiver", target=name, reason=found.lost_because)
        return
    try:
        sealed = write_target(keys, found)
    except SealBroken as broken:
        _log.error("secrets of a receiver stay as they are", target=name, reason=str(broken))
        return
    connection.execute(update(ALERT_TARGETS).where(ALERT_TARGETS.c.id == name).values(document=sealed))


def _about(name: str) -> str:
    return f"target:{name}"


def _parse(name: str, text: str) -> dict[str, Any]:  # Any: not yet checked
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise StoreVersionMismatch(f"the control database holds a target {name!r} that is no document")
    return document


def _checked(kind: type[Kind], name: str, document: dict[str, Any]) -> Kind:
    try:
        return kind.model_validate(document)
    except ValidationError as error:  # without the values, which may be secrets
        first = error.errors()[0]
        raise StoreVersionMismatch(
            f"the control database holds a target {name!r} that this version cannot read: "
            f"{first['msg']} at {first['loc']}"
        ) from None
