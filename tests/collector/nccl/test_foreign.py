"""What one process did for another reaches it, in whichever order the rings are read, or is counted as lost."""

from dataclasses import replace

from collector.nccl.aggregator import FOREIGN_PATIENCE_NS, Aggregator, ForeignJoiner
from collector.nccl.ledger import Ledger
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import IDENTITY, ORIGIN, enqueued, handle, reading, transfer

MAKER, OWNER = replace(IDENTITY, pid=1, tag=0x11), replace(IDENTITY, pid=2, tag=0x22)
THEIRS = handle(1, OWNER.tag)


def host() -> tuple[Ledger, Aggregator, Aggregator]:
    """Return a ledger, a process that made a transfer for another, and that other, of which nothing is read yet."""
    ledger = Ledger()
    maker, owner = Aggregator(ORIGIN, ledger), Aggregator(replace(ORIGIN, job="j2"), ledger)
    maker.fold(reading(transfer(operation=THEIRS, pid=2), identity=MAKER), T0)
    return ledger, maker, owner


def test_transfer_waits_for_its_owner_to_be_read() -> None:
    ledger, maker, owner = host()
    joiner = ForeignJoiner()
    owners = [(maker, MAKER), (owner, OWNER)]
    joiner.join([maker], owners, T0)
    assert ledger.rows()["transfers"].num_rows == 0
    owner.fold(reading(enqueued(operation=THEIRS), identity=OWNER), T0 + SECOND)
    joiner.join([], owners, T0 + SECOND)
    (moved,) = ledger.rows()["transfers"].to_pylist()
    assert (moved["job"], moved["seq"]) == ("j2", 1)
    joiner.join([], owners, T0 + 2 * SECOND)
    assert ledger.rows()["transfers"].num_rows == 0  # once
    assert joiner.lost == 0


def test_transfer_whose_owner_never_comes_is_lost_after_a_while() -> None:
    _, maker, owner = host()
    joiner = ForeignJoiner()
    owners = [(maker, MAKER), (owner, OWNER)]
    joiner.join([maker], owners, T0)
    joiner.join([], owners, T0 + FOREIGN_PATIENCE_NS - 1)
    assert joiner.lost == 0
    joiner.join([], owners, T0 + FOREIGN_PATIENCE_NS)
    assert joiner.lost == 1
    joiner.join([], owners, T0 + 2 * FOREIGN_PATIENCE_NS)
    assert joiner.lost == 1
