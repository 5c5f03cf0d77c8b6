"""Ranks without a GPU: processes that call the real plugin as NCCL does, at a steady pace, and end when told."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.making import make
from tests.waiting import LIMIT_S

PLUGIN_SOURCES = Path(__file__).resolve().parents[2] / "nccl_plugin"
COMM = 0x1234_5678_9ABC


@dataclass(frozen=True)
class Pace:
    """What each rank does: operations a second, how many in all, and how much of it goes over the network."""

    per_second: int
    operations: int
    channels: int = 2
    steps: int = 2


def build_ranks(folder: Path) -> None:
    """Build the plugin and what plays ranks against it; NotPresent without what that needs."""
    needs, brought_by = PLUGIN_SOURCES / "tests" / "pace.c", "nccl_plugin/tests, which only a checkout has"
    make("the plugin", PLUGIN_SOURCES, folder, "bench", needs=needs, brought_by=brought_by)


class Ranks:
    """Processes of one job on one host; they begin at once and are there until the block ends."""

    def __init__(self, built: Path, rings: Path, count: int, pace: Pace, **environment: str) -> None:
        self._built, self._rings, self._count, self._pace = built, rings, count, pace
        self._environment = environment
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Ranks":
        self._processes = [self._start(rank) for rank in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()

    def wait(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert process.stdout.readline() == "done\n"

    def leave(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(LIMIT_S)

    def _start(self, rank: int) -> "subprocess.Popen[str]":
        pace = self._pace
        numbers = (COMM, rank, self._count, pace.per_second, pace.operations, pace.channels, pace.steps)
        command = [str(self._built / "pace"), str(self._built / "liblockstep-nccl.so"), *map(str, numbers)]
        ours = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        settings = {
            "LOCKSTEP_RING_DIR": str(self._rings),
            "LOCKSTEP_JOB": "testbed",
            "LOCKSTEP_BUDGET": "0",  # else the plugin leaves detail out at times, to learn what it costs
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._count),
        }
        return subprocess.Popen(
            command, env=ours | settings | self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
