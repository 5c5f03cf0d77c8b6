"""A NIC that is slow because it does another's work is not the one to repair."""

from analyzer.evidence.observations import Evidence, Observation, gather_evidence
from tests.analyzer.build import fabric, mesh, ring
from tests.analyzer.localize.build import at, find, pairs

RING = pairs(ring())


def dead(*nics: str) -> Evidence:
    return gather_evidence(
        Observation(f"nic:{nic}", 3.0, {"what": f"{nic} has no carrier"}, is_down=True) for nic in nics
    )


def test_dead_port_is_named_instead_of_the_one_that_carries_its_traffic() -> None:
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h3/eth1"))
    assert found.component == "nic:h3/eth1"
    assert "nic:h3/eth2" in found.ambiguous_with
    assert "nic:h3/eth2, which carries its traffic as well" in found.reason
    assert found.may_isolate


def test_dead_port_of_another_host_is_no_excuse() -> None:
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h4/eth1"))
    assert found.component == "nic:h3/eth2"


def test_two_dead_ports_are_no_excuse_either() -> None:
    (found,) = find(RING, at("h3/eth2"), fabric(), dead("h3/eth0", "h3/eth1"))
    assert found.component == "nic:h3/eth2"


def test_dead_port_that_harms_nobody_is_not_mentioned() -> None:
    assert find(pairs(mesh()), at("nobody"), fabric(), dead("h3/eth1")) == []
