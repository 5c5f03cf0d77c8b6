"""A simulated job as the analyzer meets it: hosts that send, lag or fall silent, and a service that looks at them."""

import itertools
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from analyzer.incidents import TrackingOptions
from analyzer.pipeline import FollowOptions
from analyzer.service import AnalyzerService, ServiceOptions
from analyzer.windows.window import EvaluationOptions
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.records import Agent
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import open_incidents
from lockstep.state.leases import Lease
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident
from simulator.scenario import Scenario, build_topology
from tests.builders import T0, make, rows
from tests.fixtures.control import hold_lease
from tests.simulated import Delivery, tell

SEED = 21
# An evaluation every five seconds at the last five, so that deliveries, looks and faults begin and end together.
OPTIONS = ServiceOptions(
    follow=FollowOptions(
        evaluations=EvaluationOptions(hop_ns=5 * NS_PER_S, shortest_ns=5 * NS_PER_S),
        tracking=TrackingOptions(clear_evaluations=3),
    )
)
_tokens = itertools.count()  # over all clusters: a store remembers tokens longer than rows


@dataclass
class Cluster:
    """A scenario under observation: its hosts send rows and heartbeats, then the service runs, and so on."""

    store: Store
    control: ControlDatabase
    scenario: Scenario
    every_s: int = 5
    holder: str = "first"
    silent: set[str] = field(default_factory=set)  # hosts that send nothing any more
    lagging: set[str] = field(default_factory=set)  # hosts that send heartbeats only, with a watermark that stands
    stalled: dict[str, str] = field(
        default_factory=dict
    )  # hosts that send heartbeats only, and what gives no readings
    ended: set[str] = field(default_factory=set)  # hosts of which the next word is the last
    gateways: dict[str, str] = field(default_factory=dict)  # that hosts send to
    told: list[Incident] = field(default_factory=list)
    windows: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock(T0)
        self._deliveries = iter(tell(self.scenario, SEED, self.every_s))
        self._marks = dict.fromkeys((f"h{number}" for number in range(self.scenario.cluster.hosts)), T0)
        self.restart()

    def restart(self) -> None:
        """Replace the service by a new one, which remembers nothing."""
        topology = TopologyIndex(build_topology(self.scenario.cluster))
        self.service = AnalyzerService(self.store, self.control, topology, OPTIONS, self.told.append)

    @property
    def lease(self) -> Lease:
        now_ns = self.clock.now_ns()
        return hold_lease(self.control, "analyzer", self.holder, ttl_ns=15 * NS_PER_S, now_ns=now_ns)

    @property
    def open(self) -> list[Incident]:
        return open_incidents(self.control)

    def analyse(self) -> None:
        self.windows += self.service.run_once(self.lease, self.clock.now_ns())

    def run(self, seconds: int) -> None:
        for _ in range(seconds // self.every_s):
            self.send()
            self.analyse()

    def send(self) -> None:
        """Let time pass and send what became complete meanwhile."""
        self.clock.advance(self.every_s)
        delivery = next(self._deliveries)
        silent_hosts = pa.array(sorted(self.silent | self.lagging | self.stalled.keys()), pa.string())
        for name, table in delivery.rows.items():
            self._insert(name, table.filter(pc.invert(pc.is_in(table["host"], silent_hosts))))
        self.beat(delivery)

    def introduce(self) -> None:
        """Send the communicators of all hosts, also of those that send nothing else."""
        self._insert("comms", tell(self.scenario, SEED, self.every_s)[0].rows["comms"])

    def wait(self, seconds: int) -> None:
        """Let time pass in which the job sends nothing, while its hosts go on sending heartbeats."""
        for _ in range(seconds // 5):
            self.clock.advance(5)
            self.beat()
            self.analyse()

    def beat(self, delivery: Delivery | None = None) -> None:
        """Send the heartbeats of all hosts that are not silent."""
        for host in self._marks.keys() - self.silent - self.lagging - self.stalled.keys():
            self._marks[host] = delivery.watermark_ns if delivery else self.clock.now_ns()
        beats = [self._beat(host, mark) for host, mark in self._marks.items() if host not in self.silent]
        if beats:
            self._insert("agents", rows(*beats))
        self.silent |= self.ended

    def _beat(self, host: str, mark_ns: int) -> Agent:
        stalled = {self.stalled[host]: mark_ns} if host in self.stalled else {}
        said = {"ended": host in self.ended, "gateway": self.gateways.get(host), "stalled": stalled}
        now_ns = self.clock.now_ns()
        return make(Agent, host=host, ts_ns=now_ns, watermark_ns=now_ns if stalled else mark_ns, **said)

    def _insert(self, name: str, table: pa.Table) -> None:
        self.store.insert(TABLE_BY_NAME[name], table, token=f"cluster/{next(_tokens)}")
