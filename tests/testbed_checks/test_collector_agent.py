"""The collector of a host brings a job's connections onto planned paths: real agent, real shim, real ECMP."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.clock import NS_PER_S, SystemClock
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.host_paths import PathChoice, PathReport, PathSummary, read_plan, read_reports
from lockstep.state.fabric import list_path_counts, save_path_plan
from lockstep.state.leases import take_lease
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric, Flow
from tests.testbed.paths.shim import AGENT, build
from tests.testbed.ranks import build_ranks
from tests.testbed.scenarios.head_node import PlanningHead
from tests.testbed.services import wait_until
from tests.testbed.workers.job import SendingSocket, rings_of, start_job
from tests.testbed.workers.plan import Collective, JobPlan, Layout
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]
SPINES = 4
TRIED = (2, 0)  # by chance one connection in sixteen would take both
HERE, THERE = ("h0", "eth0"), ("h2", "eth0")  # on different leaves


@dataclass(frozen=True)
class Site:
    """A fabric with a head node, and what the ranks of jobs are built from."""

    fabric: Fabric
    head: PlanningHead
    folder: Path

    def plan(self, spine: int) -> tuple[str, ...]:
        """Have the head node plan the way from h0 to h2 over a spine, and wait until h0 knows; return its links."""
        links = ("h0/eth0--leaf0", f"leaf0--spine{spine}", f"leaf1--spine{spine}", "h2/eth0--leaf1")
        now_ns = SystemClock().now_ns()
        summary = PathSummary(generation=0, made_ns=now_ns, flows=1, with_ports=0, max_use=0.1, bound=0.1)
        with self.head.open_control() as control:
            lease = take_lease(control, "a test", "a test", 60 * NS_PER_S, now_ns)
            assert lease is not None
            number = save_path_plan(control, summary, {"h0": [self.choice(links)]}, lease, is_enforceable=True)
        wait_until(lambda: self._generation() == number, f"plan {number} is on h0", LIMIT_S)
        return links

    def choice(self, links: tuple[str, ...]) -> PathChoice:
        source, destination = self.fabric.address_of(*HERE), self.fabric.address_of(*THERE)
        ends = {"nic": HERE[1], "dst": THERE[0], "dst_nic": THERE[1], "source": source, "destination": destination}
        return PathChoice(connection="job/r0-r1", links=links, **ends)

    def _generation(self) -> int | None:
        plan = read_plan(self.head.plan_of("h0"))
        return plan.generation if plan else None

    def run_job(self, name: str) -> tuple[SendingSocket, PathReport]:
        """Run a rank on h0 that sends to one on h2; return its connection and what the shim said of it."""
        job_plan = JobPlan(
            name, (HERE[0], THERE[0]), Layout(dp=2), (Collective("world", "AllReduce", 1 << 16, channels=1),)
        )
        shim = {
            "LD_PRELOAD": str(self.folder / "liblockstep-paths.so"),
            "LOCKSTEP_PATHS_FILE": str(self.head.plan_of("h0")),
            "LOCKSTEP_PATHS_AGENT": AGENT,
            "LOCKSTEP_PATHS_REPORT_DIR": str(self.head.reports_of("h0")),
        }
        folder = self.folder / name
        with start_job(self.fabric, job_plan, self.folder, folder, environment=shim) as job:
            job.wait_for_step(2)
            (connection,) = job.ranks[0].sockets
            pid = job.ranks[0].process.pid
        (report,) = [each for each in read_reports(self.head.reports_of("h0")) if each.pid == pid]
        return connection, report

    def links_of(self, connection: SendingSocket) -> tuple[str, ...]:
        """Return the links of a connection as the kernels of the switches tell them."""
        return self.fabric.route_of(HERE, THERE, Flow("tcp", connection.sport, connection.dport))

    def is_answered(self) -> bool:
        with self.fabric.homes["h0"].run(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as asker:
            return asker.connect_ex(AGENT.replace("@", "\0", 1)) == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    build_ranks(folder)
    build(folder)
    options = FabricOptions(gpus_per_host=1, gbps=0.05)
    topology = leaf_spine(4, 1, leaves=2, spines=SPINES, options=options)
    with build_fabric(topology) as fabric, PlanningHead(folder / "state", fabric, probes=False) as head:
        yield Site(fabric, head, folder)


@contextmanager
def collector(site: Site) -> Iterator[None]:
    process = site.head.start_collector("h0", rings_of(site.folder, "h0"))
    site.head.reports_of("h0").mkdir(parents=True)
    try:
        wait_until(site.is_answered, "the agent of h0 listens", LIMIT_S)
        yield
    finally:
        process.kill()
        process.wait()


def test_connections_that_ask_get_ports_whose_way_is_the_planned_one_and_the_last_plan_stays(site: Site) -> None:
    with collector(site):
        for spine in TRIED:
            links = site.plan(spine)
            connection, report = site.run_job(f"over-{spine}")
            assert (report.outcome, report.sport, report.dport) == ("enforced", connection.sport, connection.dport)
            assert site.links_of(connection) == links
        with site.head.open_control() as control:
            wait_until(
                lambda: "h0" in (told := list_path_counts(control)) and told["h0"].enforced == len(TRIED), "counted"
            )
            assert list_path_counts(control)["h0"].planned == len(TRIED)

    _, report = site.run_job("without-collector")
    assert report.outcome == "agent-silent"  # and yet it is connected, by a port of the kernel's
