"""Ranks work while everything behind them is killed at random moments; afterwards every operation is counted."""

import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError
from tests.testbed.pipeline import Pipeline
from tests.testbed.ranks import Pace, Ranks, build_ranks
from tests.testbed.services import wait_until
from tests.waiting import LIMIT_S

RANKS = 2
PER_SECOND = 20  # complete rows of half a minute fit into the budget: busy machines keep a collector away so long
AWAY_S = 60  # the gateway, after all kills
_DISK_MB = 8

Note = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How often each operation of each rank arrived, and what the collector knows it lost."""

    kills: int
    operations: int  # that the ranks did
    missing: int
    doubled: int
    in_statistics: int  # operations that the per-second statistics count
    dropped: int  # rows, as the last heartbeat tells

    @property
    def is_exact(self) -> bool:
        return (self.missing, self.doubled, self.dropped) == (0, 0, 0) and self.in_statistics == self.operations


def seconds_for(kills: int, away_s: int = AWAY_S) -> int:
    """Return how long the ranks must work: a kill takes three to five seconds, what follows 40 s and an outage."""
    return kills * 5 + 40 + away_s


def run_chaos(kills: int, seed: int, seconds: int, note: Note, away_s: int = AWAY_S) -> Outcome:
    """Kill at random, fill the spool's disk, lose replies, take the gateway away for a while; then count.

    `seconds` is how long the ranks work; it must be longer than all of that takes.
    """
    dice = random.Random(seed)  # not for secrets
    pace = Pace(per_second=PER_SECOND, operations=seconds * PER_SECOND, channels=1)
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder, _small_disk(Path(folder)) as disk:
        directory, rings = Path(folder), Path(folder) / "rings"
        rings.mkdir()
        build_ranks(directory)
        with Pipeline(directory, rings, disk) as pipeline, Ranks(directory, rings, RANKS, pace) as ranks:
            _kill_at_random(pipeline, kills, dice, note)
            _fill_the_disk(pipeline, disk, note)
            _lose_replies(pipeline, note)
            _take_the_gateway_away(pipeline, away_s, note)
            note("waiting for the ranks to finish")
            ranks.wait()
            ranks.leave()
            return _count(pipeline, kills, RANKS * pace.operations, note)


def _kill_at_random(pipeline: Pipeline, kills: int, dice: random.Random, note: Note) -> None:
    for number in range(1, kills + 1):
        time.sleep(dice.uniform(0.0, 1.5))
        victim = dice.choice(pipeline.services)
        victim.kill()
        time.sleep(dice.uniform(0.0, 0.3))
        victim.start()
        note(f"kill {number} of {kills}")


def _fill_the_disk(pipeline: Pipeline, disk: Path, note: Note) -> None:
    """Have the spool's disk full while the gateway is away, then give both back."""
    note("the spool's disk is full and the gateway away")
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            pass
    pipeline.gateway.kill()
    time.sleep(10)
    pipeline.gateway.start()
    wait_until(lambda: pipeline.metric("away") == 0, "batches are taken again", LIMIT_S)
    ballast.unlink()


def _lose_replies(pipeline: Pipeline, note: Note) -> None:
    note("replies are lost")
    pipeline.proxy.behaviour = "lose_replies"
    time.sleep(5)
    pipeline.collector.kill()
    pipeline.proxy.behaviour = "forward"
    pipeline.proxy.drop_connections()
    pipeline.collector.start()


def _take_the_gateway_away(pipeline: Pipeline, seconds: int, note: Note) -> None:
    note(f"the gateway is away for {seconds} s")
    pipeline.gateway.kill()
    time.sleep(seconds / 2)
    pipeline.collector.kill()
    pipeline.collector.start()
    time.sleep(seconds / 2)
    pipeline.gateway.start()


def _count(pipeline: Pipeline, kills: int, operations: int, note: Note) -> Outcome:
    note("counting")
    with pipeline.open_store() as store:

        def ask(sql: str) -> int:
            return int(store.query(sql)["n"][0].as_py())

        distinct, counted = (
            "SELECT uniqExact(func, seq, rank) AS n FROM collectives",
            "SELECT sum(n) AS n FROM op_stats",
        )
        with suppress(LockstepError):
            wait_until(lambda: min(ask(distinct), ask(counted)) >= operations, "all operations are there", LIMIT_S)
        return Outcome(
            kills=kills,
            operations=operations,
            missing=operations - ask(distinct),
            doubled=ask("SELECT count() - uniqExact(func, seq, rank) AS n FROM collectives"),
            in_statistics=ask(counted),
            dropped=ask("SELECT max(dropped) AS n FROM agents"),
        )


@contextmanager
def _small_disk(directory: Path) -> Iterator[Path]:
    """A file system of a few MB, so that it can be filled."""
    disk = directory / "spool"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "lockstep-chaos", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
