"""A transfer's row says what was recorded of it, and what a process did for another one is given to that one."""

from dataclasses import replace
from typing import Any

import numpy as np

from collector.nccl.aggregator import FOREIGN_PATIENCE_NS, Aggregator, ForeignJoiner
from collector.nccl.communicators import Origins
from collector.nccl.host_aggregator import HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.transfers import (
    ForeignParts,
    join_operations,
    settle_bytes,
    time_transfers,
    transfer_rows,
)
from lockstep import wire
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import (
    CLOCKS,
    IDENTITY,
    MS,
    NUMBER,
    ORIGIN,
    Array,
    communicator,
    enqueued,
    handle,
    known,
    reading,
    step,
    transfer,
)

MIB = 1 << 20


def operation(nranks: int = 4, **fields: Any) -> Array:
    return known(enqueued(**fields), nranks=nranks)


def rows_of(closed: Array, of: Array) -> list[dict[str, Any]]:
    moved = join_operations(time_transfers(closed, CLOCKS, [len(closed)], NUMBER), of, np.arange(len(of)))
    return list(transfer_rows(moved[settle_bytes(moved)], Origins(ORIGIN)).to_pylist())


PART_BYTES: list[tuple[dict[str, int], int, int | None]] = [
    ({"func": wire.ALL_REDUCE}, 8, MIB * 2 * 7 // 8 // 2),
    *(({"func": func}, 4, MIB * 3 // 2) for func in (wire.ALL_GATHER, wire.REDUCE_SCATTER)),
    ({"func": wire.BROADCAST}, 4, MIB // 2),
    ({"func": wire.ALL_REDUCE, "algo": wire.TREE}, 8, MIB // 2),
    ({"func": wire.SEND, "algo": 0, "proto": 0, "peer": 1}, 0, MIB // 2),
    ({"func": wire.ALL_REDUCE, "proto": wire.LL}, 2, MIB),
    ({"func": wire.ALL_REDUCE, "proto": wire.LL128}, 2, round(MIB / 2 * 128 / 120)),
    ({"algo": wire.PAT, "func": wire.ALL_GATHER}, 4, None),
    *((fields, 4, None) for fields in ({"algo": wire.COLLNET_CHAIN}, {"channels": 0})),
    ({}, 0, None),  # before v4 nobody tells the size of a communicator
]


def test_algorithm_says_what_a_transfer_moves_and_one_of_unknown_size_has_no_row() -> None:
    for fields, nranks, expected in PART_BYTES:
        of = operation(nranks, **fields)
        assert of["has_part_bytes"].tolist() == [expected is not None], fields
        assert of["part_bytes"].tolist() == [expected] or expected is None, fields
    unreported = transfer(bytes=0)
    assert [row["bytes"] for row in rows_of(unreported, operation())] == [786_432]
    assert [row["bytes"] for row in rows_of(unreported, operation(bytes=0, algo=wire.NVLS))] == [0]
    assert rows_of(transfer(bytes=0, flags=wire.FLAG_SEND), operation(algo=wire.NVLS_TREE)) == []


MAKER, OWNER = replace(IDENTITY, pid=1, tag=0x11), replace(IDENTITY, pid=2, tag=0x22, kernel_channels=False)


def their(number: int) -> int:
    return handle(number, OWNER.tag)


def made_for_others() -> ForeignParts:
    """Return what a process did for operations 1 to 3 of another, and for a process that nobody knows."""
    helper = Aggregator(ORIGIN)
    parts = [
        transfer(operation=their(1), pid=2),
        transfer(operation=their(3), pid=2),
        transfer(operation=their(1), pid=5),
    ]
    helper.fold(reading(*parts, step(operation=their(2)), identity=MAKER), T0 + 10 * MS)
    assert helper.host.foreign is not None
    return helper.host.foreign


def owner_of(*numbers: int, ledger: Ledger | None = None) -> Aggregator:
    owner = Aggregator(replace(ORIGIN, host="h9"), HostAggregator(ledger) if ledger else None)
    mine = [enqueued(number, operation=their(number)) for number in numbers]
    owner.fold(reading(*mine, comms=[communicator(rank=3)], identity=OWNER), T0 + 10 * MS)
    return owner


def take(owner: Aggregator, parts: ForeignParts) -> ForeignParts:
    return owner.host.take_foreign(parts, OWNER, owner.member.origin)


def test_transfer_and_step_get_rank_and_operation_of_their_owner_who_gets_their_times_and_the_rest_is_left() -> None:
    ledger, parts = Ledger(), made_for_others()
    rest = take(owner_of(ledger=ledger), parts)
    assert [table.num_rows for table in ledger.rows().values()] == [0, 0, 0]
    assert np.array_equal(rest.transfers, parts.transfers)
    assert np.array_equal(rest.steps, parts.steps)
    owner = owner_of(1, 2, ledger=ledger)
    rest, tables = take(owner, parts), ledger.rows()
    (moved,), (stepped,) = tables["transfers"].to_pylist(), tables["step_samples"].to_pylist()
    assert (moved["host"], moved["rank"], moved["seq"], moved["first_ns"]) == ("h9", 3, 1, T0 + 2 * MS)
    assert (stepped["rank"], stepped["seq"]) == (3, 2)
    assert (rest.transfers["operation"].tolist(), rest.transfers["pid"].tolist()) == ([their(3), their(1)], [2, 5])
    assert len(rest.steps) == 0
    owner = owner_of(1)
    take(owner, parts)
    tables = owner.fold(reading(comms=[communicator(rank=3)], identity=OWNER), T0 + 5 * SECOND)
    (written,), (reported,) = tables["collectives"].to_pylist(), tables["transfer_stats"].to_pylist()
    assert (written["clock"], written["start_ns"], written["end_ns"]) == ("proxy", T0 + 2 * MS, T0 + 5 * MS)
    assert (reported["n"], reported["rank"], reported["bytes"]) == (1, 3, 786_432)


def test_transfer_waits_for_its_owner_to_be_read_and_is_lost_when_that_never_comes() -> None:
    for is_read in (True, False):
        ledger, joiner = Ledger(), ForeignJoiner()
        maker, owner = (Aggregator(replace(ORIGIN, job=job), HostAggregator(ledger)) for job in ("j1", "j2"))
        maker.fold(reading(transfer(operation=their(1), pid=2), identity=MAKER), T0)
        owners = [(maker, MAKER), (owner, OWNER)]
        joiner.join(maker.host.foreign, owners, T0)
        assert ledger.rows()["transfers"].num_rows == 0
        if is_read:
            owner.fold(reading(enqueued(operation=their(1)), identity=OWNER), T0 + SECOND)
        moved = []
        for at_ns in (T0 + SECOND, T0 + FOREIGN_PATIENCE_NS - 1):
            joiner.join(None, owners, at_ns)
            moved += ledger.rows()["transfers"].to_pylist()
        assert [(row["job"], row["seq"]) for row in moved] == [("j2", 1)] * is_read
        assert joiner.lost == 0
        for at_ns in (T0 + FOREIGN_PATIENCE_NS, T0 + 2 * FOREIGN_PATIENCE_NS):
            joiner.join(None, owners, at_ns)
            assert joiner.lost == (not is_read)
