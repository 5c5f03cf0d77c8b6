"""The service plans for what really sends, goes around what breaks within one look, and comes back without haste."""

from typing import Literal

import pytest

from lockstep.errors import LeaseLost, NotPresent
from lockstep.host_paths import PathSummary
from lockstep.records import FabricCounter, Step
from lockstep.state.database import ControlDatabase
from lockstep.state.fabric import list_path_plans, newest_path_plan, paths_of_host, publish_topology
from lockstep.state.incidents import detail_requests_by_host, save_incidents
from lockstep.state.leases import take_lease
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology
from lockstep.verdict import Incident
from planner.paths.service import PathService, PathServiceOptions
from simulator.scenario import parse_scenario
from simulator.simulation import Simulation
from tests.builders import SECOND, T0, rows
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import incident
from tests.planner.paths.test_traffic import reading
from tests.simulated import JOB, tell

UNTRIED_S = 20  # a link that nobody crosses is tried again after this; in use it is minutes

SCENARIO = parse_scenario(
    """
    summary = "16 ranks on 4 hosts"
    duration_s = 50

    [cluster]
    hosts = 4
    gpus_per_host = 4
    nics_per_host = 4
    hosts_per_leaf = 2
    spines = 2
    nic_gbps = 200.0

    [job]
    compute_ms = 300.0
    allreduce_mb = [512]
    """,
    "small",
)
LINK = "leaf0--spine0"


class Planner:
    """A service on a store that holds the scenario, looked at second by second."""

    def __init__(self, store: Store, control: ControlDatabase, topology: Topology) -> None:
        self.store, self.control, self.second = store, control, 45
        self.topology = topology
        self.service = PathService(store, control, topology, PathServiceOptions(untried_s=UNTRIED_S))

    def hurry(self) -> None:
        self.service = PathService(
            self.store, self.control, self.topology, PathServiceOptions(window_s=10.0, settle_s=2.0)
        )

    def look(self, seconds: int = 1) -> list[int]:
        """Look every second; return the numbers of the plans that came of it."""
        made = []
        for _ in range(seconds):
            self.second += 1
            now_ns = T0 + self.second * SECOND
            lease = hold_lease(self.control, "paths", "me", ttl_ns=10 * SECOND, now_ns=now_ns)
            made.append(self.service.run_once(lease, now_ns))
        return [number for number in made if number is not None]

    def plan(self) -> PathSummary:
        plan = newest_path_plan(self.control)
        assert plan is not None
        return plan

    def links_in_use(self) -> set[str]:
        hosts = [paths_of_host(self.control, f"h{number}") for number in range(4)]
        return {link for host in hosts for choice in host.choices for link in choice.links}


@pytest.fixture
def planner(embedded_store: Store, control: ControlDatabase) -> Planner:
    wanted = ("comms", "connections", "transfer_stats", "op_stats", "fabric_counters")
    for name, table in tell(SCENARIO, seed=1, every_s=50)[0].rows.items():
        if name in wanted:
            embedded_store.insert(TABLE_BY_NAME[name], table, token=f"scenario/{name}")
    return Planner(embedded_store, control, Simulation(SCENARIO, 1).topology)


def dead_link(state: Literal["open", "closed"] = "open", *rivals: str, seen_s: int = 46) -> Incident:
    known = incident("i1", state=state)
    named = {"component": f"link:{LINK}", "ambiguous_with": rivals, "last_seen_ns": T0 + seen_s * SECOND}
    verdict = known.verdict.model_copy(update={"fault_class": "comm_hang", **named})
    return known.model_copy(update={"verdict": verdict})


def store_steps(store: Store, before_ms: int, after_ms: int, turn_s: int) -> None:
    begin_ns, reported = T0 + SECOND, list[Step]()
    while begin_ns < T0 + 95 * SECOND:
        end_ns = begin_ns + (before_ms if begin_ns < T0 + turn_s * SECOND else after_ms) * 1_000_000
        ends = {"step": len(reported), "start_ns": begin_ns, "end_ns": end_ns}
        reported.append(Step(host="h0", job=JOB, attempt=0, world_rank=0, source="period", **ends))
        begin_ns = end_ns
    store.insert(TABLE_BY_NAME["steps"], rows(*reported), token="steps")


def store_rates(store: Store, switch: str, port: str, gbps: dict[int, float]) -> None:
    """Put readings of a switch port into the store that sends so much in the second before each."""
    sent, reported = 0, list[FabricCounter]()
    for second, rate in sorted(gbps.items()):
        sent += int(rate * 125_000_000)
        named = {"host": "h9", "switch": switch, "port": port, "speed_mbps": 800_000, "rx_bytes": 0}
        reported.append(reading(0, sent, ts_ns=T0 + second * SECOND - 1, **named))
    store.insert(TABLE_BY_NAME["fabric_counters"], rows(*reported), token=f"{switch}/{port}")


def test_flows_of_the_job_get_paths_and_hosts_read_them_and_nothing_new_is_no_new_plan(planner: Planner) -> None:
    (number,) = planner.look()
    plan = planner.plan()
    assert (plan.generation, plan.weights, plan.with_ports) == (number, {}, 0)
    assert plan.flows == sum(len(paths_of_host(planner.control, f"h{host}").choices) for host in range(4)) > 0
    assert plan.max_use == pytest.approx(plan.bound)
    assert LINK in planner.links_in_use()
    requests = detail_requests_by_host(planner.control, T0 + 47 * SECOND)
    assert requests
    assert {request.kind for host in requests.values() for request in host} == {"probe"}
    assert planner.look(3) == []


@pytest.mark.slow
def test_a_dead_link_is_left_within_one_look_and_taken_again_after_a_while(planner: Planner) -> None:
    planner.look()
    save_incidents(planner.control, [dead_link()], None)
    assert len(planner.look()) == 1
    assert LINK not in planner.links_in_use()
    assert planner.plan().weights == {LINK: 0.0}
    assert planner.plan().must_move > 0
    save_incidents(planner.control, [dead_link("closed")], None)
    assert planner.look(UNTRIED_S - 1) == [], "a link that nobody crosses looks well whatever it is"
    assert len(planner.look(3)) == 1
    assert LINK in planner.links_in_use()


def test_a_link_that_is_down_is_left_until_a_topology_has_it_up_again(planner: Planner) -> None:
    links = [each.model_copy(update={"up": each.id != LINK}) for each in planner.topology.links]
    poorer, service = planner.topology.model_copy(update={"links": tuple(links)}), planner.service
    planner.service = PathService(planner.store, planner.control, poorer)
    planner.look()
    assert planner.plan().weights == {LINK: 0.0}
    assert LINK not in planner.links_in_use()
    planner.service = service
    planner.look()
    for topology in (poorer, planner.topology):
        publish_topology(planner.control, topology, source="test", now_ns=T0 + planner.second * SECOND)
        assert len(planner.look(12)) == 1, "and up only after it has been so for a while"
        is_up = topology is planner.topology
        assert (LINK in planner.links_in_use()) == is_up
        assert planner.plan().weights.get(LINK, 1.0) == pytest.approx(float(is_up), abs=0.05)


def test_a_part_that_is_suspected_no_longer_returns_while_the_incident_goes_on(planner: Planner) -> None:
    planner.look()
    save_incidents(planner.control, [dead_link("open", "link:leaf1--spine1")], None)
    planner.look()
    assert planner.plan().weights == {LINK: 0.0, "leaf1--spine1": 0.5}
    save_incidents(planner.control, [dead_link(seen_s=47)], None)
    assert len(planner.look(12)) == 1
    assert planner.plan().weights == {LINK: 0.0}


@pytest.mark.slow
def test_a_link_full_of_strangers_is_relieved_within_one_look_and_taken_again_after_a_while(planner: Planner) -> None:
    planner.look()
    quiet = dict.fromkeys([*range(20, 47), *range(50, 65)], 12.0)
    store_rates(planner.store, "leaf0", "spine0", quiet | {47: 800.0, 48: 770.0, 49: 790.0})
    (number,) = planner.look()
    assert planner.plan().weights[LINK] == pytest.approx(0.1), "a little is left of any link that works"
    assert planner.plan().generation == number
    assert any("Gbit/s that no plan knows" in reason for reason in planner.plan().reasons)
    assert planner.look(10) == [], "neither a wavering stranger nor one that has just left is worth a plan"
    assert len(planner.look(4)) == 1
    assert planner.plan().weights == {}


def test_bursts_of_the_job_itself_are_no_congestion(planner: Planner) -> None:
    planner.look()
    bursts = {second: 390.0 if second % 4 == 0 else 0.0 for second in range(25, 60)}
    for spine in ("spine0", "spine1"):
        store_rates(planner.store, "leaf0", spine, bursts)
    assert planner.look(8) == []


@pytest.mark.slow
def test_what_a_plan_was_expected_to_bring_is_held_against_what_came(planner: Planner) -> None:
    planner.hurry()
    planner.look()
    store_steps(planner.store, before_ms=400, after_ms=300, turn_s=46)
    save_incidents(planner.control, [dead_link()], None)
    (number,) = planner.look()
    made = planner.plan()
    assert 0.0 < made.forecast[JOB] < 1.0, "flows on a dead link never end"
    assert made.measured == {}
    planner.look(17)
    scored = next(plan for plan in list_path_plans(planner.control) if plan.generation == number)
    assert scored.measured[JOB] == pytest.approx(300 / 400)
    assert scored.forecast == made.forecast


def test_flows_that_the_topology_does_not_know_are_left_out_and_said(planner: Planner) -> None:
    nodes = tuple(node for node in planner.topology.nodes if node.id != "h3")
    links = tuple(link for link in planner.topology.links if not link.a.startswith("h3/"))
    poorer = planner.topology.model_copy(update={"nodes": nodes, "links": links})
    planner.service = PathService(planner.store, planner.control, poorer)
    planner.look()
    plan = planner.plan()
    assert plan.flows > 0
    assert any("are no flows" in reason or "do not fit" in reason for reason in plan.reasons)
    with pytest.raises(NotPresent):
        paths_of_host(planner.control, "h3")


def test_without_flows_there_is_no_plan_and_a_planner_that_lost_its_role_writes_nothing(planner: Planner) -> None:
    lease = hold_lease(planner.control, "paths", "me", ttl_ns=SECOND, now_ns=T0)
    assert take_lease(planner.control, "paths", "other", SECOND, T0 + 2 * SECOND)
    with pytest.raises(LeaseLost):
        planner.service.run_once(lease, T0 + 46 * SECOND)
    planner.hurry()
    planner.second = 4000
    assert planner.look() == []
    assert list_path_plans(planner.control) == []
    with pytest.raises(NotPresent):
        paths_of_host(planner.control, "h0")
