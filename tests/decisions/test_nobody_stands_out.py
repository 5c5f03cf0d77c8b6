"""No restart helps where no part is at fault, or where it lies in the fabric: then a person is told where to look."""

import pytest

from lockstep.fabrics import dual_plane
from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Lease
from lockstep.verdict import Impact, Verdict
from planner.paths.network import build_network, without
from planner.paths.planning import plan_paths
from tests.decisions.handbook import Case, check, name_of, offers
from tests.planner.build import verdict
from tests.planner.paths.build import flows_between


def slow(fault_class: str, component: str, ratio: float = 4.0, **changes: object) -> Verdict:
    impact = Impact(step_time_ratio=ratio, ranks_waiting=1023, gpus=1024)
    return verdict(
        **({"fault_class": fault_class, "component": component, "grade": "alert", "impact": impact} | changes)
    )


LINK = "link:leaf0--spine1"
STORAGE = "storage and data loading"
TABLE = [
    Case(
        "storage stalls and everybody is four times slower",
        [slow("global_slow", "job:train")],
        "none",
        "a restart reads its checkpoint from the same storage, and everybody else's too",
        says=["nobody stands out", STORAGE],
    ),
    Case(
        "the program's own code makes it slow",
        [slow("software", "job:train", 1.5)],
        "none",
        "the same code runs after a restart",
        says=["the program's own log and stacks"],
    ),
    Case(
        "telemetry of a host does not arrive",
        [slow("telemetry_lost", "host:h3", 1.0)],
        "none",
        "nobody sees the host, which is no fault of it",
        says=["nothing is known to be wrong with the hosts", "collectors and their spools"],
    ),
    Case(
        "a link between switches is slow and paths are planned over sockets",
        [slow("comm_slow", LINK)],
        "reroute",
        "connections that keep to the plan go around it",
        cluster={"can_reroute": True},
    ),
    Case(
        "a link between switches is slow and half of the connections keep to the plan",
        [slow("comm_slow", LINK, confidence=0.9)],
        "reroute",
        "worth it, with the risk that half of them stay where they are",
        says=["50% of them keep to the plan"],
        cluster={"can_reroute": True, "enforced_share": 0.5},
    ),
    Case(
        "a link between switches is slow at a RoCE site",
        [slow("comm_slow", LINK)],
        "none",
        "NCCL takes no port from anybody there: the plan is advice, and the network team can take the link out",
        says=[f"whether {LINK} can leave the routing"],
        cluster={"can_reroute": True, "enforced_share": 0.0},
    ),
]


@pytest.mark.parametrize("case", TABLE, ids=name_of)
def test_where_no_node_is_at_fault_none_is_taken_and_a_person_is_told_where_to_look(
    case: Case, control: ControlDatabase, lease: Lease
) -> None:
    found = check(case, control, lease)
    assert found.isolate == ()
    assert "restart_process" not in offers(found), "it would come back to the same"
    if found.action == "reroute":
        assert found.cost.risk == pytest.approx(1 - case.verdicts[0].confidence * _share(case))
    elif LINK in case.verdicts[0].component:
        closed = next(each for each in found.alternatives if each.action == "reroute")
        assert closed.reason.endswith("which is advice to RoCE and InfiniBand")


def _share(case: Case) -> float:
    share = case.cluster.get("enforced_share", 1.0)
    assert isinstance(share, float)
    return share


DUAL_PORT = dual_plane(hosts=4, leaves_per_plane=1, spines_per_plane=1)


@pytest.mark.parametrize(
    ("dead", "why", "lost"),
    [
        (["nic:h3/eth1"], "the other port carries all of h3, at its rate", []),
        (["nic:h3/eth1", "nic:h3/eth0"], "no port is left: the host is cut off, and its flows say so", ["f0", "f1"]),
    ],
)
def test_host_with_two_ports_of_which_one_is_dead_sends_over_the_other(
    dead: list[str], why: str, lost: list[str]
) -> None:
    network = without(build_network(DUAL_PORT), dead)
    plan = plan_paths(network, flows_between([("h3", "h0"), ("h3", "h1"), ("h0", "h1"), ("h1", "h0")]), None)
    ends = [network.name_directed_link(link) for link in plan.flows.ends[:, 0].tolist()]
    assert plan.unreachable == lost, why
    if not lost:
        assert [end.split(" -> ")[0] for end in ends[:2]] == ["h3/eth0", "h3/eth0"], why
        rate = network.gbps[network.ports["h3/eth0"][0]]
        assert plan.load[plan.flows.ends[0, 0]] == plan.flows.size[:2].sum() <= rate, why
