"""Which gateway stores which batch, so that a batch which two of them were sent is stored once.

An agent that hears no receipt sends its batch again, behind a load balancer perhaps to another gateway, and both have
it on disk. So a gateway claims batches by their names before it stores them, and leaves to others what is theirs. The
store cannot tell: it knows an insert by its token, and an insert holds batches of hundreds of agents.

Numbers of an agent follow each other, so claims are kept as stretches: a row per agent, boot and change of gateway.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, delete, select, text, tuple_

from lockstep.batches import BatchName
from lockstep.clock import NS_PER_S
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import insert_into
from lockstep.state.tables import BATCH_CLAIMS

KEPT_NS = 30 * 86_400 * NS_PER_S  # as long as a gateway remembers what it acknowledged
_FORGET_EVERY_NS = 3600 * NS_PER_S
_AT_ONCE = 5_000  # agents and boots of a question: PostgreSQL takes 65,535 parameters, SQLite 32,766


class Stretch(NamedTuple):
    """Numbers that follow each other and are one gateway's."""

    first: int
    last: int
    gateway: str


class BatchClaims:
    """The claims of one gateway; called by one thread."""

    def __init__(self, db: ControlDatabase) -> None:
        self._db = db
        self._forgot_ns = 0

    def claim(self, gateway: str, names: Iterable[BatchName], now_ns: int) -> set[BatchName]:
        """Return which of these batches the gateway is to store; asked again, it gets the same answer."""
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for agent, boot, number in names:
            numbers[agent, boot].append(number)
        taken: set[BatchName] = set()
        with self._db.begin() as connection:
            _wait_for_others(connection)
            keys = iter(sorted(numbers))
            while some := list(islice(keys, _AT_ONCE)):
                taken |= _claim_some(connection, gateway, {key: numbers[key] for key in some}, now_ns)
            if now_ns - self._forgot_ns > _FORGET_EVERY_NS:
                connection.execute(delete(BATCH_CLAIMS).where(BATCH_CLAIMS.c.seen_ns < now_ns - KEPT_NS))
                self._forgot_ns = now_ns
        return taken


def extend(held: Sequence[Stretch], numbers: Iterable[int], gateway: str) -> tuple[list[int], list[Stretch]]:
    """Return the numbers that are the gateway's, those that nobody had among them, and its stretches that changed.

    >>> extend([Stretch(1, 4, "a"), Stretch(5, 6, "b")], [4, 5, 7, 8], "a")
    ([4, 7, 8], [Stretch(first=7, last=8, gateway='a')])
    """
    stretches = {each.first: each for each in held}
    ours: list[int] = []
    changed: dict[int, Stretch] = {}
    for number in sorted(numbers):
        holder = next((each for each in stretches.values() if each.first <= number <= each.last), None)
        if holder is None:
            before = (each.first for each in stretches.values() if (each.last, each.gateway) == (number - 1, gateway))
            first = next(before, number)
            holder = stretches[first] = changed[first] = Stretch(first, number, gateway)
        if holder.gateway == gateway:
            ours.append(number)
    return ours, list(changed.values())


def _wait_for_others(connection: Connection) -> None:
    """Let one gateway claim at a time: two that read before either writes would both have what neither had."""
    if connection.dialect.name == "postgresql":  # on SQLite nobody else writes since the transaction began
        connection.execute(text(f"LOCK TABLE {BATCH_CLAIMS.name} IN EXCLUSIVE MODE"))


def _claim_some(
    connection: Connection, gateway: str, numbers: dict[tuple[str, str], list[int]], now_ns: int
) -> set[BatchName]:
    c = BATCH_CLAIMS.c
    held: dict[tuple[str, str], list[Stretch]] = defaultdict(list)
    asked = select(c.agent, c.boot, c.first, c.last, c.gateway).where(tuple_(c.agent, c.boot).in_(list(numbers)))
    for agent, boot, *stretch in connection.execute(asked):
        held[agent, boot].append(Stretch(*stretch))
    taken: set[BatchName] = set()
    rows: list[dict[str, object]] = []
    for (agent, boot), some in numbers.items():
        ours, changed = extend(held[agent, boot], some, gateway)
        taken |= {BatchName(agent, boot, number) for number in ours}
        rows += [{"agent": agent, "boot": boot, "seen_ns": now_ns, **each._asdict()} for each in changed]
    if rows:
        insert = insert_into(connection, BATCH_CLAIMS)
        newer = {"last": insert.excluded.last, "seen_ns": insert.excluded.seen_ns}
        connection.execute(insert.on_conflict_do_update(index_elements=["agent", "boot", "first"], set_=newer), rows)
    return taken
