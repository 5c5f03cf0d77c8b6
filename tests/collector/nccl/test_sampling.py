"""The reader draws the same lots as the plugin."""

from pathlib import Path

import numpy as np

from collector.nccl.budget import WHOLE_SHARE, lot_of
from collector.nccl.communicators import CommunicatorHistory, HostCommunicators
from collector.nccl.operations import learn_operations
from collector.nccl.ringfile import open_ring
from collector.nccl.snapshot import take_reading
from lockstep import wire
from tests.collector.sources.imitated_rings import do_more, resting


def test_operations_that_the_plugin_sampled_are_those_with_the_lowest_lots(
    tmp_path: Path, plugin_library: Path
) -> None:
    about = {"LOCKSTEP_DETAIL": "steps", "LOCKSTEP_SAMPLE": "0.25", "LOCKSTEP_BUDGET": "0"}
    with resting(plugin_library, tmp_path, 301, **about) as job:
        do_more(job)
        (path,) = tmp_path.glob("*.ring")
        with open_ring(path) as ring:
            reading = take_reading(ring)
    history = CommunicatorHistory()
    history.update(reading.communicators)
    records = reading.records.sorted.enqueued
    whose = np.zeros(len(records), np.int64)
    members, found = HostCommunicators([history]).members_at(whose, records["comm"], records["ticks"])
    assert found.all()
    known = learn_operations(records, members, reading.clock.to_unix_ns(records["ticks"]), 0)
    sampled = (known["flags"] & wire.FLAG_SAMPLED) != 0
    assert len(known) > 300
    assert 0.1 < sampled.mean() < 0.4
    assert (sampled == (lot_of(known) < WHOLE_SHARE // 4)).all()
