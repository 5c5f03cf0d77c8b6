"""The reader draws the same lots as the plugin."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from collector.nccl.budget import WHOLE_SHARE, lot_of
from collector.nccl.communicators import CommunicatorHistory, HostCommunicators
from collector.nccl.operations import learn_operations
from collector.nccl.ringfile import open_ring
from collector.nccl.snapshot import take_reading
from lockstep import wire
from tests.conftest import REPO
from tests.waiting import eventually


def test_operations_that_the_plugin_sampled_are_those_with_the_lowest_lots(
    tmp_path: Path, plugin_library: Path
) -> None:
    reported = {"LOCKSTEP_RING_DIR": str(tmp_path), "LOCKSTEP_DETAIL": "steps", "LOCKSTEP_SAMPLE": "0.25"}
    reported |= {"LOCKSTEP_BUDGET": "0", "LOCKSTEP_RING_MIB": "4"}
    command = [sys.executable, "-m", "tests.fixtures.live_job", str(plugin_library)]
    with subprocess.Popen(
        command, cwd=REPO, env=os.environ | reported, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "running\n"
        (path,) = tmp_path.glob("*.ring")
        with open_ring(path) as ring:
            eventually(lambda: int(ring.live().rows["enqueued"].max(initial=0)) > 300)
            reading = take_reading(ring)
        job.kill()
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
