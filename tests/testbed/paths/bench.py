"""A fabric with the shim, probes and workers on it: where trials of planned paths take place."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lockstep.path_file import PathEntry, PathPlan, read_reports, write_plan
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.flows import PlannedFlow, Ways
from tests.testbed.paths.ports import PortFinder, each_at_once, plan_entries
from tests.testbed.paths.probing import PathProber
from tests.testbed.paths.shim import ShimFiles, build
from tests.testbed.paths.traffic import Traffic

_LEASE_S = 60


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How the fabric is shaped, and how much a flow may have on its way."""

    seed: int = 1  # of the ports that are tried
    most_mbps: float = 800.0  # of all NICs together: a third of what two cores carry, so that these are no bottleneck
    queue_ms: float = 20.0  # in longer ones acknowledgements wait behind data, and links are idle meanwhile
    send_buffer: int = 1 << 18  # above what fits on every shaped link: TCP's own window decides


class PathBench:
    """Everything that a trial needs; plans get ever higher generations. The end of the block ends all of it."""

    def __init__(self, fabric: Fabric, folder: Path, flows: Sequence[PlannedFlow], options: BenchOptions) -> None:
        self.fabric, self.flows = fabric, tuple(flows)
        self.files = ShimFiles(build(folder), folder)
        self.prober = PathProber(fabric)
        self.finder = PortFinder(self.prober, options.seed)
        self._generation = 0
        self._entries: dict[PlannedFlow, PathEntry] = {}
        nics = dict.fromkeys(nic for flow in flows for nic in (flow.src, flow.dst))
        ports = sorted({flow.dport for flow in flows})
        self.traffic = Traffic(fabric, nics, ports, self.files.environment(), options.send_buffer)

    def __enter__(self) -> "PathBench":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self.prober.close)
            self.traffic.__exit__()

    def plan(self, ways: Ways) -> None:
        """Find ports for these flows and tell the shim; what others were told stays."""
        self._entries |= plan_entries(self.fabric, self.finder, ways)
        self._write()

    def forget_plan(self) -> None:
        """Have no plan: connections get the kernel's ports."""
        self._entries = {}
        self.files.plan.unlink(missing_ok=True)

    def flows_off(self, ways: Ways) -> list[PlannedFlow]:
        """Return the flows that are known not to be on their planned way, by a probe of each one's own ports.

        Whose probes got lost stays where it is: a full queue is no reason to move.
        """
        sports = self.sports()
        now = each_at_once(lambda flow: self.way_of(flow, sports.get(flow, 0)), list(ways))
        return [flow for flow, way in ways.items() if now[flow] and not set(way) <= set(now[flow])]

    def sports(self) -> dict[PlannedFlow, int]:
        """Return the port of each flow's last connection, as the shim reported it."""
        address = self.fabric.address_of
        flow_of = {(address(*flow.src), address(*flow.dst), flow.dport): flow for flow in self.flows}
        told = sorted(read_reports(self.files.reports), key=lambda report: report.ts_ns)
        ends = [((report.local, report.remote, report.dport), report.sport) for report in told]
        return {flow_of[end]: sport for end, sport in ends if end in flow_of}

    def way_of(self, flow: PlannedFlow, sport: int) -> Sequence[str]:
        """Return the links of a flow; none when it is not known."""
        ports = (sport, flow.dport)
        return self.prober.find_paths(flow.src, flow.dst, [ports]).get(ports, ()) if sport else ()

    def enforced_share(self) -> float:
        """Return the share of the connections under the last plan of which the shim says that they follow it."""
        told = [report for report in read_reports(self.files.reports) if report.generation == self._generation]
        return sum(report.is_enforced for report in told) / len(told) if told else 0.0

    def _write(self) -> None:
        self._generation += 1
        lease_end_s = int(time.time()) + _LEASE_S
        write_plan(self.files.plan, PathPlan(self._generation, lease_end_s, tuple(self._entries.values())))
