"""What a process did for another one is given to that one, by process and handle."""

from dataclasses import replace

import numpy as np

from collector.nccl.aggregator import FOREIGN_PATIENCE_NS, Aggregator, ForeignJoiner
from collector.nccl.host_aggregator import HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.transfers import ForeignParts
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import (
    IDENTITY,
    MS,
    ORIGIN,
    communicator,
    enqueued,
    handle,
    reading,
    step,
    transfer,
)

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


def test_transfer_and_step_get_the_rank_and_operation_of_their_owner_and_the_rest_is_left() -> None:
    ledger, parts = Ledger(), made_for_others()
    rest = take(owner_of(ledger=ledger), parts)
    assert [table.num_rows for table in ledger.rows().values()] == [0, 0, 0]
    assert np.array_equal(rest.transfers, parts.transfers)
    assert np.array_equal(rest.steps, parts.steps)
    rest = take(owner_of(1, 2, ledger=ledger), parts)
    tables = ledger.rows()
    (moved,), (stepped,) = tables["transfers"].to_pylist(), tables["step_samples"].to_pylist()
    assert (moved["host"], moved["rank"], moved["seq"], moved["first_ns"]) == ("h9", 3, 1, T0 + 2 * MS)
    assert (stepped["rank"], stepped["seq"]) == (3, 2)
    assert (rest.transfers["operation"].tolist(), rest.transfers["pid"].tolist()) == ([their(3), their(1)], [2, 5])
    assert len(rest.steps) == 0


def test_operation_has_its_times_and_statistics_from_what_others_did_for_it() -> None:
    owner = owner_of(1)
    take(owner, made_for_others())
    tables = owner.fold(reading(comms=[communicator(rank=3)], identity=OWNER), T0 + 5 * SECOND)
    (written,) = tables["collectives"].to_pylist()
    assert (written["clock"], written["start_ns"], written["end_ns"]) == ("proxy", T0 + 2 * MS, T0 + 5 * MS)
    (reported,) = tables["transfer_stats"].to_pylist()
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
