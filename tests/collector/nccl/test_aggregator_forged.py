"""A process may write anything into its ring: the folding makes rows that fit their tables of it, or none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collector.nccl.aggregator import Aggregator
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.host_aggregator import HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.ringfile import INDEXED_COMM, INDEXED_ROW
from collector.nccl.snapshot import Reading
from lockstep import wire
from lockstep.arrow import conform
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import (
    IDENTITY,
    KINDS,
    ORIGIN,
    Array,
    enqueued,
    handle,
    kernel,
    reading,
    step,
    transfer,
)

OPERATIONS, INDICES = 9, 4


def forge(rng: np.random.Generator, struct: np.dtype[np.void], count: int) -> Array:
    """Return elements of random bytes, some of them 0, whose codes and places are ones that a reader lets through."""
    raw = rng.integers(0, 256, (count, struct.itemsize), np.uint8)
    raw[rng.random(raw.shape) < rng.random()] = 0
    forged = raw.view(struct).reshape(count)
    limits = {"func": len(wire.FUNCS), "dtype": len(wire.DTYPES), "algo": len(wire.ALGOS), "proto": len(wire.PROTOS)}
    limits |= {"comm": INDICES + 1, "index": INDICES}
    names = struct.names or ()
    for name in limits.keys() & names:
        forged[name] %= limits[name]
    for name in {"operation", "handle"} & set(names):
        forged[name] = [handle(number) for number in rng.integers(0, OPERATIONS, count).tolist()]
    for name in {"seq", "bytes", "gpu_start_ns", "gpu_stop_ns", "enqueued", "started", "done"} & set(names):
        forged[name] >>= 1
    return forged


def forge_reading(rng: np.random.Generator) -> Reading:
    comms = forge(rng, INDEXED_COMM, INDICES)
    comms["index"], comms["incarnation"] = range(INDICES), rng.integers(1, 3, INDICES)
    rows = forge(rng, INDEXED_ROW, 4)
    peers = rng.integers(0, 1 << 32, 4).tolist()
    rows["key"] = [index << 40 | wire.SEND << 32 | peer for index, peer in enumerate(peers, 1)]
    transfers = forge(rng, wire.TRANSFER, 6)
    transfers["wait"] %= len(wire.WAITS) << 56
    records = [forge(rng, struct, 30) for struct in KINDS.values()]
    return reading(*records, live=[rows, forge(rng, wire.OPERATION, 5), transfers], comms=[comms])


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_forged_records_fit_their_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregator = Aggregator(ORIGIN)
    count = 0
    for number in range(4):
        now_ns = T0 + number * 3 * SECOND
        forged = forge_reading(rng)
        tables = (
            aggregator.fold(forged, now_ns) if number < 3 else aggregator.finish(forged, now_ns, died=seed % 2 == 0)
        )
        tables["progress"] = aggregator.progress(forged, now_ns)
        for name, rows in tables.items():
            conform(TABLE_BY_NAME[name], rows)
            count += rows.num_rows
    assert count > 0


@pytest.mark.parametrize("seed", range(10))
def test_forged_records_of_one_process_do_not_touch_those_of_another_that_are_folded_with_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    together, alone = Ledger(), Ledger()
    host = HostAggregator(together)
    honest, forger = (Aggregator.among(host, replace(ORIGIN, job=job)) for job in ("honest", "forger"))
    reference = Aggregator(replace(ORIGIN, job="honest"), alone)
    found: dict[str, list[list[dict[str, Any]]]] = {"together": [], "alone": []}
    for number in range(4):
        now_ns, numbers = T0 + number * 3 * SECOND, range(number * 20, number * 20 + 20)
        parts = [part for one in numbers for part in (enqueued(one), transfer(one), step(one), kernel(one))]
        reported = reading(*parts, identity=replace(IDENTITY, nccl_version="2.28.9"))
        host.fold([honest.snapshot(reported)[0], forger.snapshot(forge_reading(rng))[0]], now_ns, WHOLE_SHARE)
        reference.fold(reported, now_ns)
        for name, ledger in (("together", together), ("alone", alone)):
            tables = ledger.rows() | ledger.seconds.close(now_ns - 2 * SECOND)
            rows = [row for table in tables.values() for row in table.to_pylist()]
            found[name].append([row for row in rows if row["job"] == "honest"])
    assert found["together"] == found["alone"]
    assert sum(map(len, found["alone"])) > 200
