"""Agents, hosts, GPUs and NICs are listed with what they told last."""

import pytest

from api.views.hosts import find_host, list_agents, list_gpus, list_hosts, list_nics, load_of, rate_gbps
from lockstep.errors import NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.views.build import NOW, counters, heartbeat, incident_on, load_job, put, reading
from tests.builders import SECOND, T0

FABRIC = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)


def test_agent_tells_its_version_lag_and_drops(shared_store: Store) -> None:
    put(
        shared_store, [heartbeat("m0", NOW - 400 * SECOND, dropped=5), heartbeat("m0", NOW - 100 * SECOND, dropped=6)]
    )
    put(shared_store, [heartbeat("m0", NOW, dropped=9, lag_s=2.5, version="1.1"), heartbeat("m1", NOW - 60 * SECOND)])
    m0, m1 = (agent for agent in list_agents(shared_store, NOW, 100) if agent.host in ("m0", "m1"))
    assert (m0.version, m0.lag_s, m0.dropped, m0.dropped_lately, m0.is_silent) == ("1.1", 2.5, 9, 3, False)
    assert (m1.is_silent, m1.last_seen_ns) == (True, NOW - 60 * SECOND)


def test_agents_go_on_after_a_host_and_old_ones_are_left_out(shared_store: Store) -> None:
    put(shared_store, [heartbeat(host, NOW) for host in ("n0", "n1", "n2")] + [heartbeat("n3", NOW - 7200 * SECOND)])
    assert [agent.host for agent in list_agents(shared_store, NOW, 2, after=("n0",))] == ["n1", "n2"]
    assert "n3" not in {agent.host for agent in list_agents(shared_store, NOW, 100)}
    assert "n3" in {agent.host for agent in list_agents(shared_store, NOW, 100, since_s=10_000)}


def test_gpu_is_shown_with_its_last_reading(shared_store: Store) -> None:
    put(
        shared_store,
        [
            reading("g0", 1, "GPU-x", T0),
            reading("g0", 1, "GPU-y", T0 + SECOND, temp_c=90.0),
            reading("g0", 0, "GPU-z", T0),
        ],
    )
    gpus = list_gpus(shared_store, NOW, 10, host="g0")
    assert [(gpu.component, gpu.gpu_uuid, gpu.temp_c) for gpu in gpus] == [
        ("gpu:g0/0", "GPU-z", 60.0),
        ("gpu:g0/1", "GPU-y", 90.0),
    ]
    assert [gpu.gpu for gpu in list_gpus(shared_store, NOW, 10, after=("g0", 0), host="g0")] == [1]


def test_nic_is_shown_with_its_load_over_the_last_minute(shared_store: Store) -> None:
    gbps_50 = 50 * SECOND // 8
    put(shared_store, [counters("k0", "eth0", NOW - 600 * SECOND, tx_bytes=0)])  # too old to count
    put(
        shared_store,
        [counters("k0", "eth0", NOW - (9 - n) * SECOND, tx_bytes=10**12 + n * gbps_50) for n in range(10)],
    )
    (nic,) = list_nics(shared_store, NOW, 10, host="k0")
    assert (nic.component, nic.up, nic.tx_gbps, nic.rx_gbps, nic.load) == ("nic:k0/eth0", True, 50.0, 0.0, 0.5)


def test_rate_of_a_counter_that_began_anew_is_not_known() -> None:
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


def test_host_tells_what_runs_there(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "runs")
    put(shared_store, [reading("runs-h1", 0, "GPU-q", NOW), counters("runs-h1", "eth0", NOW, tx_bytes=1)])
    host = find_host(shared_store, control, None, "runs-h1", NOW)
    assert (host.jobs, host.in_topology, host.gpus) == (("runs",), False, None)
    assert host.agent is not None
    assert [gpu.gpu_uuid for gpu in host.gpu_readings] == ["GPU-q"]
    assert [nic.nic for nic in host.nic_readings] == ["eth0"]


def test_host_that_nobody_knows_is_not_there(shared_store: Store, control: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no host 'nowhere'"):
        find_host(shared_store, control, FABRIC, "nowhere", NOW)
