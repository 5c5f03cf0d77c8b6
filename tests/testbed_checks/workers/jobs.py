"""Small jobs on loopback, and what the real collector reads of them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from collector.nccl.budget import Budget
from collector.sources.nccl_rings import NcclRingsSource
from tests.collector.sources.imitated_rings import Follower
from tests.testbed.workers.job import Job, rings_of, start_job
from tests.testbed.workers.loopback import Loopback
from tests.testbed.workers.plan import Collective, Compute, Item, JobPlan, Layout

MIB = 1 << 20
NICS = ("eth0", "eth1")
STEP = (Compute(5, noise=0.1), Collective("world", "AllReduce", MIB))
_EVERYTHING = Budget(1 << 30, 1 << 40)


def plan_job(ranks: int, step: tuple[Item, ...] = STEP, per_host: int = 1, **facts: Any) -> JobPlan:
    """A data-parallel job with two NICs a host, unless told otherwise."""
    hosts = tuple(f"h{rank // per_host}" for rank in range(ranks))
    usual: dict[str, Any] = {"job": f"job-{uuid4().hex[:8]}", "layout": Layout(dp=ranks), "nics": NICS}
    return JobPlan(hosts=hosts, step=step, **usual | facts)


@contextmanager
def running(plan: JobPlan, built: Path, folder: Path, limit_s: int = 60) -> Iterator[Job]:
    with start_job(Loopback(), plan, built, folder, limit_s) as job:
        yield job


class Recordings:
    """A collector's source for each host of a job, and the rows that they gave."""

    def __init__(self, followers: dict[str, Follower]) -> None:
        self.followers = followers

    def read(self, times: int = 1) -> None:
        for _ in range(times):
            for follower in self.followers.values():
                follower.skip(1)
                follower.read()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for follower in self.followers.values() for row in follower.rows.get(table, [])]

    @property
    def lost(self) -> int:
        return sum(follower.dropped + len(follower.refusals()) for follower in self.followers.values())


@contextmanager
def following(hosts: Sequence[str], folder: Path) -> Iterator[Recordings]:
    """Follow the rings of a job that writes into `folder`, all of them and without a budget."""
    with ExitStack() as stack:
        followers = {}
        for host in dict.fromkeys(hosts):
            source = NcclRingsSource(host, directories=(rings_of(folder, host),), budget=_EVERYTHING)
            followers[host] = Follower(stack.enter_context(closing(source)))
        yield Recordings(followers)


def record(plan: JobPlan, built: Path, folder: Path) -> Recordings:
    """Run a job to its end and return all that was recorded."""
    with following(plan.hosts, folder) as recordings, running(plan, built, folder) as job:
        job.wait_for("done")
        recordings.read(2)
        assert job.leave() == [0] * len(plan.hosts)
        recordings.read(6)
        return recordings
