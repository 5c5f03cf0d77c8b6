"""The connections of a job are found as on a real host: NICs by NCCL's log, ports by the sockets of the processes."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from collector.connections.flows import Kernel
from collector.sources.connections import ConnectionsSource
from lockstep.clock import SystemClock
from tests.testbed.services import free_port
from tests.testbed.workers.job import Job, start_job
from tests.testbed.workers.loopback import Loopback
from tests.testbed.workers.plan import JobPlan
from tests.testbed_checks.workers.jobs import NICS, plan_job
from tests.waiting import eventually

RANKS = 3
CLOCK = SystemClock()


@contextmanager
def looked_at(plan: JobPlan, built: Path, folder: Path) -> Iterator[tuple[Job, ConnectionsSource]]:
    """A job, and a source that is told which NIC has which address: on loopback the kernel lists only one."""
    place = Loopback()
    with start_job(place, plan, built, folder) as job:
        job.wait_for("ready")
        addresses = {place.address_of(host, nic): nic for host in plan.hosts for nic in plan.nics}
        with closing(ConnectionsSource("h0", kernel=Kernel(addresses=lambda _: addresses))) as source:
            yield job, source


def rows_of(plan: JobPlan, source: ConnectionsSource) -> list[dict[str, Any]]:
    rows = source.read(CLOCK.now_ns(), ()).tables["connections"].to_pylist()
    return [row for row in rows if row["job"] == plan.job]


def test_log_names_the_nic_of_every_channel(built: Path, tmp_path: Path) -> None:
    plan = plan_job(RANKS)
    comm = plan.comm_id("world", tuple(range(RANKS)))
    with looked_at(plan, built, tmp_path / "job") as (_, source):
        found = rows_of(plan, source)

    assert {(row["comm"], row["transport"], row["source"]) for row in found} == {(comm, "socket", "nccl_log")}
    ends = {(row["rank"], row["peer"], row["channel"], row["direction"], row["nic"]) for row in found}
    assert ends == {
        (rank, (rank + (1 if way == "send" else -1)) % RANKS, channel, way, NICS[channel])
        for rank in range(RANKS)
        for channel in (0, 1)
        for way in ("send", "recv")
    }


def test_sockets_tell_the_ports_that_the_ranks_say_themselves(built: Path, tmp_path: Path) -> None:
    plan = plan_job(RANKS)
    seen: dict[tuple[int, int], int] = {}
    with looked_at(plan, built, tmp_path / "job") as (job, source):
        said = {(each.rank, each.channel): each.sport for rank in job.ranks for each in rank.sockets}

        def has_all_ports() -> bool:
            seen.update(
                {(row["rank"], row["channel"]): row["sport"] for row in rows_of(plan, source) if row["sport"]}
            )
            return len(seen) == len(said)

        eventually(has_all_ports)
    assert seen == said
    assert len(said) == RANKS * 2


def test_told_source_port_is_used(built: Path, tmp_path: Path) -> None:
    port = free_port()
    plan = plan_job(RANKS, source_ports={("world", 1, 2, 0): port})
    with start_job(Loopback(), plan, built, tmp_path / "job") as job:
        job.wait_for_step(1)
        ports = {(each.rank, each.peer, each.channel, each.nic): each.sport for each in job.ranks[2].sockets}

    assert ports[2, 0, 1, "eth1"] == port
    assert ports[2, 0, 0, "eth0"] != port


def test_inside_of_a_host_nothing_goes_over_the_network(built: Path, tmp_path: Path) -> None:
    plan = plan_job(4, per_host=2)
    with looked_at(plan, built, tmp_path / "job") as (job, source):
        found = rows_of(plan, source)
        sending = [(each.rank, each.peer) for rank in job.ranks for each in rank.sockets]

    assert sorted(set(sending)) == [(1, 2), (3, 0)]
    assert {(row["rank"], row["peer"]) for row in found if row["transport"] == "shm"} == {(0, 1), (2, 3)}
