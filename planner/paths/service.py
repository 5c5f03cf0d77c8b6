"""The shell around the path planner: telemetry and incidents in, numbered plans out, one planner at a time.

Once a second links are looked at: a plan follows within that second when one is worse or better than before. Which
flows there are, and which ports lead where, changes more slowly and is read less often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.arrow import rows_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.host_paths import PathChoice, PathSummary
from lockstep.state.database import ControlDatabase
from lockstep.state.fabric import find_topology, list_host_paths, list_topologies, save_path_plan, score_path_plan
from lockstep.state.incidents import add_detail_requests, open_incidents
from lockstep.state.leases import Lease
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology, TopologyIndex
from lockstep.verdict import Verdict
from planner.paths.catalogue import Catalogue, Circumstances, doubt_changed, key_of, read_catalogue
from planner.paths.demand import Demand, find_demand, read_demand
from planner.paths.flows import find_unfit
from planner.paths.health import Change, Evidence, LinkHealth, judge_topology, judge_verdict, name_parts
from planner.paths.network import Network, build_intact, find_directed_links, with_rates
from planner.paths.planning import PathPlan, plan_paths
from planner.paths.ports import PortChoice, choose_ports, explain_ports, request_probes
from planner.paths.report import describe_choices, explain, from_json
from planner.paths.traffic import (
    Expected,
    Pace,
    TrafficJudge,
    compare_paces,
    expect_loads,
    predict_paces,
    read_paces,
    read_traffic,
)

_PATHS = TABLE_BY_NAME["paths"]


@dataclass(frozen=True, slots=True)
class PathServiceOptions:
    """How often what is looked at."""

    demand_s: float = 10.0  # flows come and go with jobs
    window_s: float = 30.0  # what was sent in this time is what is planned for: some steps of most jobs
    lag_s: float = 5.0  # rows of the last seconds are still under way
    untried_s: float = 300.0  # after which a link is tried again that looks well only because nobody crosses it
    traffic_s: float = 45.0  # over which rates of switch ports are compared: four readings where each takes 10 s
    catalogue_s: float = 30.0  # new ports are learned by probes, some dozens a second
    other_size: float = 0.2  # by which the sum of all flows must differ to be worth a plan by itself
    settle_s: float = 5.0  # after a plan, before the steps that are held against its forecast
    detail_request_s: float = 60.0  # for which probes are requested
    most_detail_requests: int = 50  # in one round: the rest comes in the next


@dataclass
class _Seen:
    """What was read last, and when."""

    demand: Demand = field(default_factory=lambda: Demand([]))
    demand_ns: int = 0
    catalogue: Catalogue = field(default_factory=Catalogue)
    catalogue_ns: int = 0
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # of incidents that were open
    changed_ns: dict[str, int] = field(default_factory=dict)  # when links last changed


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A plan whose forecast is still to be held against what comes."""

    number: int
    paces: Mapping[str, Pace]  # before it
    made_ns: int


class PathService:
    """Keeps a plan for all flows of all jobs in force."""

    def __init__(
        self, store: Store, control: ControlDatabase, topology: Topology, options: PathServiceOptions | None = None
    ) -> None:
        self._store, self._control = store, control
        self._topology, self._index, self._parts = topology, TopologyIndex(topology), name_parts(topology)
        self._version: int | None = None  # of the topology that was the newest at the last look
        self._network = build_intact(topology)  # what is down is known by its weight
        self._options = options or PathServiceOptions()
        self._health, _ = LinkHealth().observe(judge_topology(topology, topology, 0), 0)
        self._traffic = TrafficJudge(self._network)
        self._expected: Expected | None = None  # of the plan in force
        self._seen = _Seen()
        self._plan: PathPlan | None = None
        self._choices: Mapping[str, Sequence[PathChoice]] = {}
        self._awaited: _Awaited | None = None

    def run_once(self, lease: Lease, now_ns: int) -> int | None:
        """Look at links, flows and ports, and plan anew where it is worth it; return the number of a new plan."""
        self._score(lease, now_ns)
        changes = self._evaluate_links(now_ns)
        is_other = self._read_flows(now_ns)
        learned = self._learn_ports(now_ns, bool(changes))
        if not self._seen.demand.flows and self._plan is None:
            return None
        before = self._plan
        if changes or is_other:
            network = with_rates(self._network, self._health.weights)
            self._plan = plan_paths(network, self._seen.demand.flows, before or self._recall(network))
            self._expected = expect_loads(self._plan, self._seen.demand.flows)
        return self._publish(lease, now_ns, changes, before) if changes or is_other or learned else None

    def _recall(self, network: Network) -> PathPlan | None:
        """Return the plan of an earlier planner, so that taking over moves nothing; None where there was none."""
        held = [choice for host in list_host_paths(self._control) for choice in host.choices]
        paths = {choice.connection: list(choice.links) for choice in held}
        return from_json(network, self._seen.demand.flows, {"flows": paths}) if paths else None

    def _evaluate_links(self, now_ns: int) -> list[Change]:
        """Take in what incidents, the published topology and traffic say of links."""
        evidence = [*self._judge_verdicts(now_ns), *self._judge_topology(now_ns), *self._judge_traffic(now_ns)]
        self._health, changes = self._health.observe(evidence, now_ns)
        # A link that is only slower is still hashed upon: the ports of others stay where they are.
        flipped = {change.link: change.ts_ns for change in changes if 0.0 in (change.before, change.after)}
        self._seen.changed_ns |= flipped
        return changes

    def _judge_verdicts(self, now_ns: int) -> list[Evidence]:
        """Return what open incidents say of links, and that those are well of which they say nothing any more."""
        verdicts = {incident.id: incident.verdict for incident in open_incidents(self._control)}
        reported = [each for verdict in verdicts.values() for each in judge_verdict(verdict, self._parts)]
        named = {(each.source, each.link) for each in reported}
        before = self._seen.verdicts.values()
        healed = [each for verdict in before for each in judge_verdict(verdict, self._parts, healed_ns=now_ns)]
        self._seen.verdicts = verdicts
        return reported + [self._doubt(each) for each in healed if (each.source, each.link) not in named]

    def _judge_topology(self, now_ns: int) -> list[Evidence]:
        """Return which links a topology that was published since has down or up; other cables need a restart."""
        number = next((version.number for version in list_topologies(self._control, limit=1)), 0)
        before, known, self._version = self._topology, self._version, number
        if known is None or number == known:
            return []
        published = find_topology(self._control, number)[1]
        if {link.id for link in published.links} != {link.id for link in before.links}:
            return []
        self._topology = published
        return judge_topology(published, before, now_ns)

    def _doubt(self, healed: Evidence) -> Evidence:
        """Return the evidence with a longer time to prove itself where no flow crosses the link: it shows nothing."""
        is_used = self._plan is not None and self._plan.load[find_directed_links(self._network, [healed.link])].any()
        return healed if is_used else replace(healed, hold_s=self._options.untried_s)

    def _judge_traffic(self, now_ns: int) -> list[Evidence]:
        """Return what links carry that is not ours; nothing before there is a plan, when nobody knows what is."""
        if self._expected is None:
            return []
        rates = read_traffic(self._store, now_ns - int(self._options.traffic_s * NS_PER_S), now_ns)
        return self._traffic.judge(rates, self._expected, self._health, now_ns)

    def _read_flows(self, now_ns: int) -> bool:
        """Read which flows there are, where it is time to; return whether they are others than those of the plan."""
        if now_ns - self._seen.demand_ns < self._options.demand_s * NS_PER_S:
            return False
        end_s = (now_ns - int(self._options.lag_s * NS_PER_S)) // NS_PER_S
        begin_s = end_s - int(self._options.window_s)
        facts = read_demand(self._store, self._index, begin_s * NS_PER_S, end_s * NS_PER_S)
        before, now = self._seen.demand, self._leave_out_unfit(find_demand(facts))
        is_other = _is_other(before, now, self._options.other_size)
        self._seen.demand, self._seen.demand_ns = (now if is_other else before), now_ns
        return is_other

    def _leave_out_unfit(self, demand: Demand) -> Demand:
        """Return the flows that this fabric knows the ends of: telemetry may name what the topology does not."""
        unfit = find_unfit(self._network, demand.flows)
        if not unfit:
            return demand
        first = next(iter(unfit.values()))
        message = f"{len(unfit)} flows do not fit the topology and are left out; {first}"
        kept = [flow for flow in demand.flows if flow.id not in unfit]
        return replace(demand, flows=kept, left_out=(*demand.left_out, message))

    def _learn_ports(self, now_ns: int, is_changed: bool) -> bool:
        """Read which ports lead where, when it is time, or doubt those near a change; return whether that differs."""
        now, before = Circumstances(self._topology, now_ns, self._seen.changed_ns), self._seen.catalogue
        if now_ns - self._seen.catalogue_ns >= self._options.catalogue_s * NS_PER_S:
            self._seen.catalogue, self._seen.catalogue_ns = read_catalogue(self._store, now), now_ns
            self._remember(before, now_ns)
        elif is_changed:
            self._seen.catalogue = doubt_changed(before, now)
        return len(self._seen.catalogue.paths) != len(before.paths)

    def _remember(self, before: Catalogue, now_ns: int) -> None:
        """Write new entries into `paths`, where the next planner finds them."""
        known = {(key_of(path), path.seen_ns) for path in before.paths}
        fresh = [path for path in self._seen.catalogue.paths if (key_of(path), path.seen_ns) not in known]
        if fresh:
            self._store.insert(_PATHS, rows_of(_PATHS, list(fresh)), token=f"paths/{now_ns}")

    def _publish(self, lease: Lease, now_ns: int, changes: Sequence[Change], before: PathPlan | None) -> int | None:
        """Write the plan down for hosts to read; nothing is written where no host is told anything new."""
        if self._plan is None:
            return None
        wired = self._seen.demand.wiring.items()
        held = {flow: wiring.sport for flow, wiring in wired if wiring.sport is not None}
        ports = choose_ports(self._plan, self._seen.catalogue, held=held)
        choices = describe_choices(self._plan, ports, self._seen.demand, self._topology, self._health.weights)
        self._detail_request(ports, now_ns)
        if choices == self._choices and not changes:
            return None
        paces = self._read_paces(now_ns)
        expected = predict_paces(self._plan, before, self._seen.demand.flows, paces)
        summary = self._summarise(now_ns, ports, changes).model_copy(update={"forecast": expected})
        number = save_path_plan(self._control, summary, choices, lease, self._topology.routing == "ecmp")
        self._choices = choices
        self._awaited = _Awaited(number, {job: paces[job] for job in expected}, now_ns) if expected else None
        return number

    def _read_paces(self, until_ns: int) -> dict[str, Pace]:
        """Return the pace of jobs in the newest seconds before a moment that are complete."""
        end_ns = until_ns - int(self._options.lag_s * NS_PER_S)
        return read_paces(self._store, end_ns - int(self._options.window_s * NS_PER_S), end_ns)

    def _score(self, lease: Lease, now_ns: int) -> None:
        """Hold the forecast of the last plan against the steps since, once there are enough of them."""
        options = self._options
        needed_s = options.settle_s + options.window_s + options.lag_s
        if self._awaited is None or now_ns - self._awaited.made_ns < needed_s * NS_PER_S:
            return
        awaited, self._awaited = self._awaited, None
        measured = compare_paces(awaited.paces, self._read_paces(now_ns))
        score_path_plan(self._control, awaited.number, measured, lease)

    def _detail_request(self, ports: Sequence[PortChoice], now_ns: int) -> None:
        """Ask hosts to probe for ports that are missing."""
        assert self._plan is not None
        expires_ns = now_ns + int(self._options.detail_request_s * NS_PER_S)
        for probe in request_probes(self._plan, ports, self._seen.catalogue)[: self._options.most_detail_requests]:
            name = f"paths/{probe.src}/{probe.src_nic}/{probe.dst}/{probe.dst_nic}/{probe.sport}"
            asked = DetailRequest(id=name, host=probe.src, kind="probe", details=probe.details, expires_ns=expires_ns)
            add_detail_requests(self._control, asked, now_ns=now_ns)

    def _summarise(self, now_ns: int, ports: Sequence[PortChoice], changes: Sequence[Change]) -> PathSummary:
        assert self._plan is not None
        messages = [f"{change.link} counts {change.after:.0%} of its rate: {change.reason}" for change in changes]
        return PathSummary(
            generation=0,
            made_ns=now_ns,
            flows=len(self._plan.flows),
            with_ports=sum(choice.port is not None for choice in ports),
            max_use=min(self._plan.highest_use, 1e9),  # what JSON can hold, also where nothing is left
            bound=min(self._plan.bound, 1e9),
            must_move=self._plan.must_move,
            may_move=self._plan.may_move,
            weights=self._health.weights,
            reasons=(*messages, *explain(self._plan), *explain_ports(ports), *self._seen.demand.left_out),
        )


def _is_other(before: Demand, now: Demand, other_size: float) -> bool:
    """Return whether flows came, went, or send much more or less in all."""
    if [flow.id for flow in before.flows] != [flow.id for flow in now.flows]:
        return True
    old, new = (sum(flow.gbps * flow.duty for flow in demand.flows) for demand in (before, now))
    return abs(new - old) > other_size * max(old, new)
