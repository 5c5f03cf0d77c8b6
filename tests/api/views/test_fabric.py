"""Every link has the rate that either end counts, and what an open incident names is lit."""

import pytest

from api.views.fabric import LinkView, read_fabric
from lockstep.errors import NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.records import FabricCounter
from lockstep.state.database import ControlDatabase
from lockstep.state.fabric import publish_topology
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.views.build import NOW, counters, incident_on, put
from tests.builders import SECOND

FABRIC = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1)
GBPS_10 = 10 * SECOND // 8


def port(switch: str, name: str, ts_ns: int, tx_bytes: int, rx_bytes: int) -> FabricCounter:
    return FabricCounter(
        host="head",
        ts_ns=ts_ns,
        switch=switch,
        port=name,
        up=True,
        speed_mbps=None,
        rx_bytes=rx_bytes,
        tx_bytes=tx_bytes,
        errors=None,
        drops=None,
        pause_rx=None,
        pause_tx=None,
        fec_uncorrected=None,
        extra={},
    )


def links(store: Store, control: ControlDatabase) -> dict[str, LinkView]:
    return {link.id: link for link in read_fabric(store, control, FABRIC, NOW).links}


def test_link_has_the_rates_that_its_ends_count(shared_store: Store, control: ControlDatabase) -> None:
    for second in (0, 1):
        moment = NOW - second * SECOND
        put(shared_store, [counters("h0", "eth0", moment, tx_bytes=(9 - second) * GBPS_10, rx_bytes=0)])
        put(shared_store, [port("leaf1", "spine0", moment, (9 - second) * 2 * GBPS_10, (9 - second) * GBPS_10)])
    found = links(shared_store, control)
    cable, uplink = found["h0/eth0--leaf0"], found["leaf1--spine0"]
    assert (cable.ab_gbps, cable.ba_gbps) == (10.0, 0.0)
    assert cable.load == pytest.approx(10.0 / cable.gbps)
    assert (uplink.ab_gbps, uplink.ba_gbps) == (20.0, 10.0)
    assert found["leaf0--spine0"].load is None


def test_suspect_is_lit_with_its_cable_and_its_node(shared_store: Store, control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h1/eth0", "i1", ambiguous_with=())], None)
    fabric = read_fabric(shared_store, control, FABRIC, NOW)
    assert {link.id for link in fabric.links if link.suspects} == {"h1/eth0--leaf1"}
    assert {node.id: node.suspects for node in fabric.nodes if node.suspects} == {"h1": ("i1",)}


def test_published_topology_is_shown_where_no_file_is_given(shared_store: Store, control: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no topology is known"):
        read_fabric(shared_store, control, None, NOW)
    publish_topology(control, FABRIC, source="lldp", now_ns=NOW)
    fabric = read_fabric(shared_store, control, None, NOW)
    assert fabric.version is not None
    assert (fabric.version.number, len(fabric.links), fabric.path_plan) == (1, len(FABRIC.links), None)
