"""A ring file that the real plugin writes, read while its process lives and after it was killed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collector.nccl.ringfile import RingFile, open_ring
from lockstep import wire
from lockstep.clock import NS_PER_S
from tests.conftest import REPO

PLUGIN = REPO / "nccl_plugin"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, plugin_library: Path) -> list[str]:
    """The command of a process that loads the plugin and enqueues what it is told to."""
    built = tmp_path_factory.mktemp("job") / "job"
    source = Path(__file__).with_name("job.c")
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{PLUGIN}", str(source)]
    subprocess.run([*command, "-ldl", "-o", str(built)], check=True)
    return [str(built), str(plugin_library)]


class Job:
    """A running process with the plugin in it."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process, self.folder = process, folder

    def enqueue(self, count: int) -> int:
        """Let it enqueue so many operations; return how many there are by now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def open_ring(self) -> RingFile:
        (path,) = self.folder.glob("*.ring")
        return open_ring(path)


@pytest.fixture
def job(program: list[str], tmp_path: Path) -> Iterator[Job]:
    settings = {"RING_DIR": str(tmp_path), "JOB": "train", "HOST": "node-7", "RING_MIB": "4"}
    settings |= {"NCCL_VERSION": "2.28.9", "KERNEL": "off"}
    environment = {f"LOCKSTEP_{name}": value for name, value in settings.items()} | {"RANK": "3", "WORLD_SIZE": "8"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "SLURM_"))}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept | environment
    ) as process:
        yield Job(process, tmp_path)
        process.kill()


def test_file_says_whose_it_is_the_kernel_who_holds_it_and_it_can_be_read_after_a_kill(job: Job) -> None:
    job.enqueue(10)
    with job.open_ring() as ring:
        identity = ring.identity
        assert (identity.pid, identity.job, identity.host) == (job.process.pid, "train", "node-7")
        assert (identity.world_rank, identity.world_size, identity.nccl_version) == (3, 8, "2.28.9")
        assert ring.owner() == job.process.pid
        job.process.kill()
        job.process.wait()
        assert ring.owner() is None
        assert len(ring.read_records().sorted.enqueued) == 10
        assert len(ring.live().transfers) == 1


def test_every_operation_and_transfer_is_read_and_the_last_is_open(job: Job) -> None:
    job.enqueue(100)
    with job.open_ring() as ring:
        records, live, clock = ring.read_records(), ring.live(), ring.clock()
        (communicator,) = ring.communicators()
        created_ns = ring.identity.created_ns
    assert records.lost == 0
    assert records.sorted.enqueued["seq"].tolist() == list(range(100))
    assert records.sorted.enqueued["bytes"].tolist() == [(1000 + seq) * 4 for seq in range(100)]
    assert {wire.FUNCS[code] for code in records.sorted.enqueued["func"].tolist()} == {"AllReduce"}
    assert records.sorted.transfers["operation"].tolist() == records.sorted.enqueued["operation"][:-1].tolist()
    assert live.operations["seq"].tolist() == [99]
    assert live.transfers[["peer", "channel"]].tolist() == [(4, 5)]
    assert live.transfers["operation"].tolist() == live.operations["handle"].tolist()
    assert live.rows[["enqueued", "started", "done"]].tolist() == [(100, 100, 99)]
    assert wire.split_key(live.rows["key"])[0].tolist() == [int(communicator["index"])]
    assert (int(communicator["id"]), int(communicator["rank"]), int(communicator["nranks"])) == (0xABCDEF, 3, 8)
    times = clock.to_unix_ns(records.sorted.enqueued["ticks"])
    assert (np.diff(times) >= 0).all()
    assert created_ns <= times[0] <= times[-1] < created_ns + 600 * NS_PER_S


def test_reader_beside_the_plugin_counts_all_that_it_missed(job: Job) -> None:
    job.enqueue(1)
    seen: list[int] = []
    lost = transfers = 0
    with job.open_ring() as ring:
        for _ in range(5):
            total = job.enqueue(6_000)
            records = ring.read_records()
            seen += records.sorted.enqueued["seq"].tolist()
            transfers += len(records.sorted.transfers)
            lost += records.lost
    assert total == 30_001
    assert (np.diff(seen) > 0).all()
    assert seen[-1] == total - 1
    assert len(seen) + transfers + lost == 2 * total - 1
    assert lost > 0  # 12,000 records at a time do not fit into the ring


def test_request_is_obeyed_at_the_next_operation(job: Job) -> None:
    job.enqueue(1)
    with job.open_ring() as ring:
        assert int(ring.status()["level"]) == wire.STEPS
        ring.request(wire.OPERATIONS, 0, 2_000)
        job.enqueue(2000)
        status = ring.status()
    assert (int(status["stamp"]), int(status["level"]), int(status["budget_ppm"])) == (1, wire.OPERATIONS, 2_000)
