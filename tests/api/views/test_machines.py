"""Hosts and their parts as last known of, links, checkpoints, and what each part did before, wherever it is now."""

from pathlib import Path
from typing import Any

import pytest

from api.views.fabric import LinkView, read_fabric
from api.views.hosts import find_host, list_agents, list_gpus, list_hosts, list_nics, load_of, rate_gbps
from api.views.jobs import read_checkpoints, sort_key
from api.views.ledger import check_component, concerns, find_part, list_parts
from lockstep.errors import BadInput, NotPresent
from lockstep.execution import NodeOrder, Outcome, PartIdentity
from lockstep.fabrics import leaf_spine
from lockstep.records import FabricCounter, PluginHealth
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_node_order, save_decisions, save_isolated, save_outcome
from lockstep.state.fabric import publish_topology
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from planner.assembly import open_folders
from tests.api.views.build import NOW, counters, happening, heartbeat, incident_on, load_job, put, reading
from tests.builders import SECOND, T0, make
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision
from tests.lockstep.state.test_executions import isolated
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, copy_real

FABRIC = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)


def test_agent_tells_its_version_lag_and_drops_and_old_ones_are_left_out(shared_store: Store) -> None:
    dropped = ((400, 5), (100, 6))
    put(shared_store, [heartbeat("m0", NOW - ago * SECOND, dropped=rows) for ago, rows in dropped])
    put(shared_store, [heartbeat("m0", NOW, dropped=9, lag_s=2.5, version="1.1"), heartbeat("m1", NOW - 60 * SECOND)])
    m0, m1 = (agent for agent in list_agents(shared_store, NOW, 100) if agent.host in ("m0", "m1"))
    assert (m0.version, m0.lag_s, m0.dropped, m0.dropped_lately, m0.is_silent) == ("1.1", 2.5, 9, 3, False)
    assert (m1.is_silent, m1.last_seen_ns) == (True, NOW - 60 * SECOND)
    put(shared_store, [heartbeat(host, NOW) for host in ("n0", "n1", "n2")] + [heartbeat("n3", NOW - 7200 * SECOND)])
    assert [agent.host for agent in list_agents(shared_store, NOW, 2, after=("n0",))] == ["n1", "n2"]
    assert "n3" not in {agent.host for agent in list_agents(shared_store, NOW, 100)}
    assert "n3" in {agent.host for agent in list_agents(shared_store, NOW, 100, since_s=10_000)}


def test_agent_tells_how_the_plugins_of_its_ranks_do(shared_store: Store) -> None:
    rank: dict[str, Any] = {"host": "p0", "local_ranks": 4, "ts_ns": NOW}
    sound = [make(PluginHealth, **rank, pid=pid) for pid in (1, 2)]
    rank |= {"level": "transfers", "lowered": "callbacks", "callback_ppm": 6_000, "refused_comms": 2, "lost": 5}
    old = [make(PluginHealth, **rank | {"ts_ns": NOW - ago * SECOND}, pid=pid) for pid, ago in ((1, 9), (4, 60))]
    put(shared_store, [*sound, make(PluginHealth, **rank, pid=3), *old])
    put(shared_store, [heartbeat("p0", NOW)])
    (agent,) = (agent for agent in list_agents(shared_store, NOW, 100) if agent.host == "p0")
    assert agent.plugins is not None
    assert agent.plugins.levels == {"steps": 2, "transfers": 1}
    troubles = "1 silent, 1 lowered, 2 communicators unseen, 5 records lost"
    assert agent.plugins.words == f"2 steps, 1 transfers, 0.60 %, {troubles}"


def test_gpus_and_nics_are_shown_as_last_read(shared_store: Store) -> None:
    put(shared_store, [reading("g0", 1, "GPU-x", T0), reading("g0", 0, "GPU-z", T0)])
    put(shared_store, [reading("g0", 1, "GPU-y", T0 + SECOND, temp_c=90.0)])
    gpus = list_gpus(shared_store, NOW, 10, host="g0")
    shown = [(gpu.component, gpu.gpu_uuid, gpu.temp_c) for gpu in gpus]
    assert shown == [("gpu:g0/0", "GPU-z", 60.0), ("gpu:g0/1", "GPU-y", 90.0)]
    assert [gpu.gpu for gpu in list_gpus(shared_store, NOW, 10, after=("g0", 0), host="g0")] == [1]
    gbps_50 = 50 * SECOND // 8
    put(shared_store, [counters("k0", "eth0", NOW - 600 * SECOND, tx_bytes=0)])  # too old to count
    sent = [(NOW - (9 - n) * SECOND, 10**12 + n * gbps_50) for n in range(10)]
    put(shared_store, [counters("k0", "eth0", ts_ns, tx_bytes=tx_bytes) for ts_ns, tx_bytes in sent])
    (nic,) = list_nics(shared_store, NOW, 10, host="k0")
    assert (nic.component, nic.up, nic.tx_gbps, nic.rx_gbps, nic.load) == ("nic:k0/eth0", True, 50.0, 0.0, 0.5)
    assert rate_gbps(100, 50, SECOND) is None
    assert rate_gbps(100, 100, 0) is None
    assert load_of(None, None, 100) is None
    assert load_of(1.0, None, None) is None


def test_host_of_the_topology_is_listed_also_when_it_is_silent(shared_store: Store, control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h1/eth0", "i1"), incident_on("job:train", "i2")], None)
    hosts = {host.host: host for host in list_hosts(shared_store, control, FABRIC, NOW)}
    assert hosts["h1"].in_topology
    assert (hosts["h1"].agent, hosts["h1"].nics, hosts["h1"].incidents) == (None, 1, ("i1",))
    assert hosts["h0"].incidents == ()


def test_host_tells_what_runs_there_if_anybody_knows_it(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "runs")
    put(shared_store, [reading("runs-h1", 0, "GPU-q", NOW), counters("runs-h1", "eth0", NOW, tx_bytes=1)])
    host = find_host(shared_store, control, None, "runs-h1", NOW)
    assert (host.jobs, host.in_topology, host.gpus) == (("runs",), False, None)
    assert host.agent is not None
    assert [gpu.gpu_uuid for gpu in host.gpu_readings] == ["GPU-q"]
    assert [nic.nic for nic in host.nic_readings] == ["eth0"]
    with pytest.raises(NotPresent, match="no host 'nowhere'"):
        find_host(shared_store, control, FABRIC, "nowhere", NOW)


TWO_LEAVES = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1)
GBPS_10 = 10 * SECOND // 8


def port(switch: str, name: str, ts_ns: int, tx_bytes: int, rx_bytes: int) -> FabricCounter:
    unknown: dict[str, Any] = dict.fromkeys(FabricCounter.__dataclass_fields__)
    known = {"host": "head", "switch": switch, "port": name, "ts_ns": ts_ns, "up": True, "extra": {}}
    return FabricCounter(**(unknown | known | {"tx_bytes": tx_bytes, "rx_bytes": rx_bytes}))


def links(store: Store, control: ControlDatabase) -> dict[str, LinkView]:
    return {link.id: link for link in read_fabric(store, control, TWO_LEAVES, NOW).links}


def test_link_has_the_rates_that_its_ends_count(shared_store: Store, control: ControlDatabase) -> None:
    for second in (0, 1):
        timestamp = NOW - second * SECOND
        put(shared_store, [counters("h0", "eth0", timestamp, tx_bytes=(9 - second) * GBPS_10, rx_bytes=0)])
        put(shared_store, [port("leaf1", "spine0", timestamp, (9 - second) * 2 * GBPS_10, (9 - second) * GBPS_10)])
    found = links(shared_store, control)
    cable, uplink = found["h0/eth0--leaf0"], found["leaf1--spine0"]
    assert (cable.ab_gbps, cable.ba_gbps) == (10.0, 0.0)
    assert cable.load == pytest.approx(10.0 / cable.gbps)
    assert (uplink.ab_gbps, uplink.ba_gbps) == (20.0, 10.0)
    assert found["leaf0--spine0"].load is None


def test_fabric_lights_its_suspects_and_is_the_published_one_where_no_file_is_given(
    shared_store: Store, control: ControlDatabase
) -> None:
    save_incidents(control, [incident_on("nic:h1/eth0", "i1", ambiguous_with=())], None)
    fabric = read_fabric(shared_store, control, TWO_LEAVES, NOW)
    assert {link.id for link in fabric.links if link.suspects} == {"h1/eth0--leaf1"}
    assert {node.id: node.suspects for node in fabric.nodes if node.suspects} == {"h1": ("i1",)}
    with pytest.raises(NotPresent, match="no topology is known"):
        read_fabric(shared_store, control, None, NOW)
    publish_topology(control, TWO_LEAVES, source="lldp", now_ns=NOW)
    fabric = read_fabric(shared_store, control, None, NOW)
    assert fabric.version is not None
    assert (fabric.version.number, len(fabric.links), fabric.path_plan) == (1, len(TWO_LEAVES.links), None)


def test_checkpoints_are_listed_with_the_one_to_go_back_to_and_where_none_are_it_is_said(tmp_path: Path) -> None:
    saved = copy_real("dcp", tmp_path / "train")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    found = read_checkpoints(folders, "train", NOW_NS, 10, None, step=230)
    assert found.back_to is not None
    assert (found.back_to.path, found.back_to.steps_lost) == (f"{saved}/step-200", 30)
    assert found.back_to.repeats_s == (NOW_NS - OLD_NS) / 1e9
    steps = [shown.checkpoint.step for shown in found.items]
    assert steps == sorted((step for step in steps if step is not None), reverse=True)
    assert found.next is None
    empty = read_checkpoints(folders, "nobody", NOW_NS, 10, None)
    assert (empty.items, empty.back_to, bool(empty.remarks)) == ((), None, True)
    assert open_folders(PlannerSettings()) is None
    with pytest.raises(NotPresent, match=r"planner\.checkpoints is not set"):
        read_checkpoints(None, "train", NOW_NS, 10, None)


def test_checkpoints_come_page_by_page(tmp_path: Path) -> None:
    for step in (100, 200):
        copy_real("dcp/step-200", tmp_path / "train" / f"step-{step}")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    every = read_checkpoints(folders, "train", NOW_NS, 10, None)
    first = read_checkpoints(folders, "train", NOW_NS, 1, None)
    assert first.next is not None
    rest = read_checkpoints(folders, "train", NOW_NS, 10, sort_key(first.items[0].checkpoint))
    assert first.items + rest.items == every.items


DAY = 86_400 * SECOND
LATER = T0 + 10 * DAY


def isolate(control: ControlDatabase, component: str, node: str, **fields: Any) -> None:
    """Take a node out of service under the decision d1 on the incident i1, which must be there."""
    lease = hold_lease(control, "planner", now_ns=T0)
    save_decisions(control, [decision("d1", incident="i1")], None)
    out = {"node": node, "component": component, "since_ns": T0, "changed_ns": T0}
    save_isolated(control, isolated(**(out | fields)), lease)


def test_part_is_listed_with_what_it_did(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [happening("p0", T0, "nic:p0/eth0"), happening("p0", T0, "nic:p0/eth1", severity="info")])
    told = [incident_on("nic:p0/eth0", "i1"), incident_on("nic:p0/eth0", "i2"), incident_on("job:train", "i3")]
    save_incidents(control, told, None)
    save_outcome(control, Outcome(incident="i1", was_right=True, who="ann", ts_ns=T0 + DAY))
    save_outcome(control, Outcome(incident="i2", was_right=False, part="link:p0/eth0--leaf1", who="ann", ts_ns=T0))
    isolate(control, "nic:p0/eth0", "p0")
    parts = {part.component: part for part in list_parts(shared_store, control, LATER) if "p0" in part.component}
    nic, cable = parts["nic:p0/eth0"], parts["link:p0/eth0--leaf1"]
    assert (nic.incidents, nic.confirmed, nic.cleared, nic.isolations, nic.severe_events) == (2, 1, 1, 1, 1)
    assert (nic.last_ns, nic.last_at) == (T0 + DAY, "2023-11-15T22:13:20Z")
    assert (cable.incidents, cable.confirmed) == (0, 1)
    assert sorted(parts) == ["link:p0/eth0--leaf1", "nic:p0/eth0"], "a NIC that told nothing severe has no history"
    assert [part.kind for part in list_parts(shared_store, control, LATER, "link")] == ["link"]


def test_host_has_the_history_of_all_its_parts(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [happening("q0", T0 + n, f"gpu:q0/{n}") for n in range(2)])
    save_incidents(control, [incident_on("nic:q0/eth0", "i1"), incident_on("gpu:q1/0", "i2")], None)
    part = find_part(shared_store, control, "host:q0", LATER)
    assert [each.id for each in part.history] == ["i1"]
    assert [event.component for event in part.events] == ["gpu:q0/1", "gpu:q0/0"]
    assert (part.incidents, part.severe_events) == (1, 2)


def test_gpu_is_followed_by_its_uuid_and_flagged_where_it_came_after_it_was_named(
    shared_store: Store, control: ControlDatabase
) -> None:
    put(shared_store, [reading("r0", 3, "GPU-bad", T0 - SECOND), reading("r7", 0, "GPU-bad", T0 + 5 * DAY)])
    save_incidents(control, [incident_on("gpu:r0/3", "i1")], None)
    flags = {part.component: part.flags for part in list_parts(shared_store, control, LATER) if part.flags}
    sentence = "GPU-bad was gpu:r0/3 when incident i1 named it, and is here since 2023-11-19T22:13:20Z"
    assert flags["gpu:r7/0"] == (sentence,)
    part = find_part(shared_store, control, "gpu:r7/0", LATER)
    assert part.flags == (sentence,)
    put(shared_store, [reading("s0", 1, "GPU-s", T0 - SECOND), reading("s0", 1, "GPU-s", T0 + SECOND)])
    put(shared_store, [reading("s9", 2, "GPU-s", T0 + 3 * DAY), reading("s0", 1, "GPU-new", T0 + 4 * DAY)])
    put(shared_store, [reading("s0", 1, "GPU-new", T0 + 5 * DAY)])
    told = [incident_on("gpu:s0/1", "i1"), incident_on("gpu:s0/1", "i2", opened_ns=T0 + 4 * DAY + SECOND)]
    save_incidents(control, told, None)
    old, new = (find_part(shared_store, control, f"gpu:GPU-{name}", LATER) for name in ("s", "new"))
    assert [each.id for each in old.history] == ["i1"]
    assert [each.id for each in new.history] == ["i2"]
    assert [seen.component for seen in old.sightings] == ["gpu:s0/1", "gpu:s9/2"]


def test_gpu_that_was_sent_back_and_is_here_again_is_flagged(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [reading("u0", 0, "GPU-rma", T0), reading("u5", 4, "GPU-rma", T0 + 8 * DAY)])
    save_incidents(control, [incident_on("host:u0", "i1")], None)
    isolate(control, "host:u0", "u0")
    sent: dict[str, Any] = {"kind": "rma", "part": PartIdentity(uuid="GPU-rma", ticket="RMA-17")}
    give_node_order(control, NodeOrder(decision="d1", node="u0", who="ann", ts_ns=T0 + 2 * DAY, **sent))
    flags = {each.component: each.flags for each in list_parts(shared_store, control, LATER) if each.flags}
    (sentence,) = flags["gpu:u5/4"]
    assert sentence.startswith("GPU-rma was sent back from u0 on 2023-11-16T22:13:20Z (ticket RMA-17)")
    assert sentence.endswith("and is here again, seen until 2023-11-22T22:13:20Z")
    assert "gpu:u0/0" not in flags, "there it was before"


def test_part_that_is_named_after_its_repair_is_flagged(shared_store: Store, control: ControlDatabase) -> None:
    told = [incident_on("nic:v0/eth0", "i1"), incident_on("nic:v0/eth0", "i2", opened_ns=T0 + 3 * DAY)]
    save_incidents(control, told, None)
    isolate(control, "nic:v0/eth0", "v0", state="returned", repaired_ns=T0 + DAY)
    part = find_part(shared_store, control, "nic:v0/eth0", LATER)
    assert part.flags == ("named again by incident i2, after its repair of 2023-11-15T22:13:20Z",)
    assert [each.state for each in part.out_of_service] == ["returned"]


def test_part_without_a_history_or_a_name_is_not_there(shared_store: Store, control: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no events for nic:zz/eth9 in the last 90 days"):
        find_part(shared_store, control, "nic:zz/eth9", LATER)
    for name in ("", "nic", "nic:", ":x", "job:train", "rank:3", "nic:\0", "nic:" + "x" * 300):
        with pytest.raises(BadInput, match="is no name of a part"):
            check_component(name)


@pytest.mark.parametrize(
    ("part", "component", "belongs"),
    [
        ("host:h3", "gpu:h3/1", True),
        ("host:h3", "link:h3/eth1--leaf1", True),
        ("host:h3", "gpu:h33/1", False),
        ("switch:leaf1", "link:h3/eth1--leaf1/12", True),
        ("port:leaf1/12", "link:h3/eth1--leaf1/12", True),
        ("port:leaf1/1", "link:h3/eth1--leaf1/12", False),
        ("nic:h3/eth1", "host:h3", False),
        ("host:h3", "job:h3", False),
    ],
)
def test_history_of_a_part_holds_what_concerns_it(part: str, component: str, belongs: bool) -> None:
    assert concerns(part, component) is belongs
