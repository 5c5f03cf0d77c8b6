"""What failures mean for cables: which direction, how several add up, and what is not there."""

import pytest

from lockstep.errors import BadScenario
from lockstep.fabrics import leaf_spine
from simulator.faults import parse_fault
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.plan import plan_fabric
from tests.testbed.faults.conditions import Condition, Failure, conditions, down_end, silent_hosts

PLAN = plan_fabric(leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=2), ShapeOptions())


def told(*lines: str, level: float = 1.0) -> dict[tuple[str, str], Condition]:
    failures = [Failure(parse_fault(f"at 0 s fail {line}"), level) for line in lines]
    return {(port.node, port.name): condition for port, condition in conditions(PLAN, failures).items()}


@pytest.mark.parametrize(
    ("part", "senders"),
    [
        ("nic:h3/eth1 tx", {("h3", "eth1")}),
        ("nic:h3/eth1 rx", {("leaf1", "h3-eth1")}),
        ("nic:h3/eth1", {("h3", "eth1"), ("leaf1", "h3-eth1")}),
        ("link:h3/eth1--leaf1 tx", {("h3", "eth1")}),
        ("link:leaf0--spine1 tx", {("leaf0", "spine1")}),
        ("link:leaf0--spine1 rx", {("spine1", "leaf0")}),
        ("switch:spine0", {("spine0", "leaf0"), ("spine0", "leaf1"), ("leaf0", "spine0"), ("leaf1", "spine0")}),
        (
            "fabric",
            {
                (a, b)
                for n in (0, 1)
                for m in (0, 1)
                for a, b in ((f"leaf{n}", f"spine{m}"), (f"spine{m}", f"leaf{n}"))
            },
        ),
    ],
)
def test_a_part_is_the_ports_that_send_there(part: str, senders: set[tuple[str, str]]) -> None:
    assert told(f"{part} to 50 %") == dict.fromkeys(senders, Condition(share=0.5))


def test_of_two_rates_the_lower_counts_losses_are_independent_and_delays_add_up() -> None:
    assert told("nic:h0/eth0 tx to 50 %", "link:h0/eth0--leaf0 tx to 80 %")["h0", "eth0"].share == 0.5
    assert told("nic:h0/eth0 losing 50 %", "link:h0/eth0--leaf0 losing 50 %")["h0", "eth0"].loss == 0.75
    assert told("switch:leaf0 delayed 2 ms", "nic:h0/eth0 delayed 3 ms")["h0", "eth0"].delay_s == pytest.approx(0.005)


def test_a_ramp_is_there_as_far_as_it_has_come() -> None:
    assert told("nic:h0/eth0 tx to 60 %", level=0.5)["h0", "eth0"].share == pytest.approx(0.8)
    assert told("nic:h0/eth0 tx losing 10 %", level=0.5)["h0", "eth0"].loss == pytest.approx(0.05)


def test_down_takes_the_carrier_and_down_on_one_side_only_the_packets() -> None:
    assert told("nic:h0/eth0 down") == dict.fromkeys([("h0", "eth0"), ("leaf0", "h0-eth0")], Condition(is_up=False))
    assert told("nic:h0/eth0 rx down") == {("leaf0", "h0-eth0"): Condition(loss=1.0)}


def test_the_port_of_a_switch_is_switched_off_and_of_two_switches_the_leafs() -> None:
    ends = {cable.link.id: down_end(cable, PLAN) for cable in PLAN.cables}
    assert (ends["h3/eth1--leaf1"].node, ends["h3/eth1--leaf1"].name) == ("leaf1", "h3-eth1")
    assert (ends["leaf0--spine1"].node, ends["leaf0--spine1"].name) == ("leaf0", "spine1")


def test_a_host_that_is_gone_has_neither_cables_nor_telemetry() -> None:
    gone = told("host:h2 gone")
    assert {port for port in gone if port[0] == "h2"} == {("h2", "eth0"), ("h2", "eth1")}
    assert not any(condition.is_up for condition in gone.values())
    assert silent_hosts([Failure(parse_fault(f"at 0 s fail host:{host}")) for host in ("h2 gone", "h1 silent")]) == {
        "h1",
        "h2",
    }


@pytest.mark.parametrize("part", ["nic:h9/eth0", "nic:h0/eth9", "nic:leaf0/spine0", "link:leaf0--leaf1", "switch:h0"])
def test_a_part_that_the_fabric_does_not_have_is_refused_by_name(part: str) -> None:
    with pytest.raises(BadScenario, match=f"there is no {part} in this fabric"):
        told(f"{part} to 50 %")
