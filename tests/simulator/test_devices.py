"""NICs and switches count what went through them, and each fault shows where a real one would, and nowhere else."""

from typing import Any

import pytest

from lockstep.arrow import conform, find_duplicate
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from simulator.devices import DeviceTelemetry
from simulator.scenario import Doing, JobShape, Layout, Noise, Scenario
from simulator.simulation import Simulation
from tests.builders import T0
from tests.simulator.build import (
    cluster,
    follow,
    follow_all,
    joined,
    moved_bytes,
    nics_with,
    ports_with,
    rows_at,
    scenario,
)
from tests.tiers import long_except

RING = JobShape(compute_ms=400.0, allreduce_mb=(64, 32))
TREE = JobShape(step=(Doing(do="compute", ms=400.0), Doing(do="AllReduce", mb=64, algo="TREE")))
PIPELINE = JobShape(
    layout=Layout(tp=2, pp=2),
    step=(Doing(do="pipeline", ms=20, backward_ms=40, mb=8), Doing(do="AllReduce", mb=64, group="dp")),
)
EXPERTS = JobShape(layout=Layout(ep=8), step=(Doing(do="compute", ms=400.0), Doing(do="AllToAll", mb=64, group="ep")))
TROUBLE_OF_NICS = ("rx_errors", "tx_errors", "rx_drops", "tx_drops", "retrans", "qdisc_drops", "port_xmit_wait")
SLOW_TAKER = "at 0 s fail nic:h1/eth0 rx to 40 %"
TROUBLE_OF_PORTS = ("errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected")


def broken(*lines: str, transport: str = "socket", **shape: Any) -> Scenario:
    """Return a scenario in which every host sends to the next, through leaves where it has to."""
    return scenario(*lines, cluster=cluster(transport=transport, **shape), job=RING, duration_s=60.0)


def link_faults(told: Scenario, second: int = 10) -> dict[str, dict[str, int]]:
    """Return everything that is counted at some second beside bytes: where, and how much, by column."""
    tables = follow(told, second)
    nics = {column: nics_with(tables, column, second) for column in TROUBLE_OF_NICS}
    ports = {column: ports_with(tables, column, second) for column in TROUBLE_OF_PORTS}
    return {column: found for column, found in (nics | ports).items() if found}


@pytest.mark.parametrize("transport", long_except(["socket"], ["ib", "socket"]))
def test_all_rows_are_sound_and_none_comes_twice_and_each_seed_has_its_own(transport: str) -> None:
    lines = ["at 1 s fail nic:h1/eth0 tx to 50 %", "at 2 s fail link:leaf0--spine1 losing 1 %"]
    lines += ["at 3 s fail nic:h3/eth1 down for 1 s every 3 s", "at 4 s fail gpu:h2/1 to 60 % over 10 s"]
    lines += ["at 8 s fail rank:5 killed"]
    told = scenario(*lines, cluster=cluster(transport=transport, spares=2), noise=Noise(), job=RING)
    tables, other = follow(told, 12), follow(told, 12, seed=2)
    same, _ = follow_all.__wrapped__(told, 12)
    assert set(tables) == {"nic_counters", "fabric_counters", "gpu_health", "clocks", "events"}
    for name, rows in tables.items():
        assert conform(TABLE_BY_NAME[name], rows).equals(rows), name
        assert find_duplicate(TABLE_BY_NAME[name], rows) is None, name
        assert rows.equals(same[name]), name
        assert name not in ("gpu_health", "clocks") or not rows.equals(other[name]), name


def test_everybody_tells_in_its_own_time_and_spares_receive_nothing() -> None:
    tables = follow(broken(spares=2), 20)
    told_at = {name: sorted(set(rows["ts_ns"].to_pylist())) for name, rows in tables.items()}
    periods_s = {"nic_counters": 1, "fabric_counters": 10, "gpu_health": 5, "clocks": 10}
    assert told_at == {
        name: [T0 + second * NS_PER_S for second in range(0, 21, period_s)] for name, period_s in periods_s.items()
    }
    nics = {f"{row['host']}/{row['nic']}" for row in rows_at(tables, "nic_counters", 7)}
    assert nics == {f"h{host}/eth{nic}" for host in range(6) for nic in range(2)}
    assert nics - set(nics_with(tables, "rx_bytes", 7)) == {"h4/eth0", "h4/eth1", "h5/eth0", "h5/eth1"}
    assert len(rows_at(tables, "gpu_health", 10)) == 6 * 4
    assert len(rows_at(tables, "clocks", 10)) == 6


@pytest.mark.parametrize("transport", long_except(["socket"], ["ib", "socket"]))
@pytest.mark.parametrize("job", [RING, TREE, PIPELINE, EXPERTS], ids=["ring", "tree", "pipeline", "experts"])
def test_what_is_sent_is_received_and_is_what_the_transfers_moved(job: JobShape, transport: str) -> None:
    told = scenario(cluster=cluster(transport=transport), job=job, noise=Noise())
    tables, operations = follow_all(told, 5)
    for second in (1, 3, 5):
        sent, received = (sum(nics_with(tables, column, second).values()) for column in ("tx_bytes", "rx_bytes"))
        assert sent == received == moved_bytes(operations, second) > 0


def test_switches_and_both_ends_of_a_cable_count_the_same_bytes() -> None:
    tables = follow(scenario(job=TREE, noise=Noise(), cluster=cluster(spines=1)), 10)
    rows = rows_at(tables, "fabric_counters", 10)
    for switch in ("leaf0", "leaf1", "spine0"):
        mine = [row for row in rows if row["switch"] == switch]
        assert sum(row["rx_bytes"] for row in mine) == sum(row["tx_bytes"] for row in mine) > 0
    ports = {row["port"]: row for row in rows}
    for nic in rows_at(tables, "nic_counters", 10):
        port = ports[f"{nic['host']}/{nic['nic']}"]
        assert (nic["tx_bytes"], nic["rx_bytes"]) == (port["rx_bytes"], port["tx_bytes"])
        assert nic["speed_mbps"] == port["speed_mbps"] == 100_000


@pytest.mark.parametrize("transport", long_except(["socket"], ["ib", "socket"]))
def test_healthy_cluster_counts_bytes_and_nothing_else(transport: str) -> None:
    told = broken(transport=transport)
    tables = follow(told, 10)
    assert link_faults(told) == {}
    assert all(row["up"] for name in ("nic_counters", "fabric_counters") for row in tables[name].to_pylist())
    assert "events" not in tables


CROSSING = "h1/eth0 h1/eth1 h3/eth0 h3/eth1"  # the NICs that send to the other leaf
UNDER_LEAF0 = "h0/eth0 h0/eth1 h1/eth0 h1/eth1"
SPINE = "spine0:leaf0 spine0:leaf1"
_UNDER_LEAF0 = " ".join(f"leaf0:{nic}" for nic in UNDER_LEAF0.split())
_PAUSING = "leaf1:spine0 leaf1:spine1 spine0:leaf0 spine1:leaf0"
_PAUSED = f"{_UNDER_LEAF0} leaf0:spine0 leaf0:spine1 leaf1:h3/eth0 leaf1:h3/eth1 spine0:leaf1 spine1:leaf1"
SHOWN = [  # what fails, over which transport and how many spines, and which counters grow where
    ("nic:h1/eth0 tx to 50 %", "socket", 2, "qdisc_drops h1/eth0, retrans h1/eth0"),
    ("nic:h1/eth0 tx to 50 %", "ib", 2, ""),
    ("nic:h1/eth0 rx to 50 %", "socket", 2, "drops leaf0:h1/eth0, retrans h0/eth0"),
    # The leaf is told to pause on the port to the NIC, and tells those behind it on their ports.
    ("nic:h1/eth0 rx to 50 %", "ib", 2, "pause_rx leaf0:h1/eth0, pause_tx leaf0:h0/eth0, port_xmit_wait h0/eth0"),
    ("link:leaf0--spine0 tx to 10 %", "socket", 1, "drops leaf0:spine0, retrans h1/eth0 h1/eth1"),
    (  # the spine cannot pass it on
        *("link:leaf0--spine0 rx to 10 %", "ib", 1),
        "pause_rx leaf1:spine0, pause_tx leaf1:h3/eth0 leaf1:h3/eth1 spine0:leaf1, port_xmit_wait h3/eth0 h3/eth1",
    ),
    ("link:leaf0--spine0 to 60 %", "socket", 1, ""),  # two NICs of 100 Gb/s send through a link of 400
    ("link:leaf0--spine0 to 40 %", "socket", 1, f"drops leaf0:spine0 spine0:leaf0, retrans {CROSSING}"),
    ("switch:leaf0 to 30 %", "socket", 2, f"drops {_UNDER_LEAF0}, retrans {UNDER_LEAF0} h3/eth0 h3/eth1"),
    (
        *("switch:leaf0 to 30 %", "ib", 2),
        f"pause_rx {_PAUSING}, pause_tx {_PAUSED}, port_xmit_wait {UNDER_LEAF0} h3/eth0 h3/eth1",
    ),
    ("fabric to 20 %", "socket", 1, f"drops leaf0:spine0 leaf1:spine0, retrans {CROSSING}"),
    (
        *("link:h1/eth0--leaf0 losing 5 %", "socket", 2),
        "errors leaf0:h1/eth0, fec_uncorrected leaf0:h1/eth0, retrans h0/eth0 h1/eth0, rx_errors h1/eth0",
    ),
    ("nic:h1/eth0 tx losing 5 %", "ib", 2, "retrans h1/eth0, tx_errors h1/eth0"),
    ("nic:h1/eth0 tx losing 5 %", "socket", 2, "retrans h1/eth0, tx_errors h1/eth0"),
    (
        *("switch:spine0 losing 1 %", "socket", 1),
        f"drops {SPINE}, errors {SPINE}, fec_uncorrected {SPINE}, retrans {CROSSING}",
    ),
]


@pytest.mark.parametrize(
    ("what", "transport", "spines", "shown"), SHOWN, ids=[f"{what} {transport}" for what, transport, *_ in SHOWN]
)
def test_fault_shows_where_a_real_one_would_alone(what: str, transport: str, spines: int, shown: str) -> None:
    found = link_faults(broken(f"at 2 s fail {what}", transport=transport, spines=spines))
    assert ", ".join(" ".join([column, *sorted(found[column])]) for column in sorted(found)) == shown
    if what.startswith("nic:h1/eth0 tx") and found:  # what it did not send is what it sends again
        assert found["retrans"] == (found.get("qdisc_drops") or found["tx_errors"])


def test_losses_are_a_share_of_the_frames_and_counters_never_fall() -> None:
    tables = follow(broken("at 0 s fail nic:h1/eth0 tx losing 5 %"), 10)
    sent = nics_with(tables, "tx_bytes", 10)["h1/eth0"]
    assert nics_with(tables, "tx_errors", 10)["h1/eth0"] == pytest.approx(0.05 * sent / 4096, rel=1e-3)
    rows = tables["nic_counters"].to_pylist()
    mine = [row for row in rows if (row["host"], row["nic"]) == ("h1", "eth0")]
    for column in ("rx_bytes", "tx_bytes", "tx_errors", "retrans"):
        assert mine[-1][column] > 0
        assert [row[column] for row in mine] == sorted(row[column] for row in mine)


def test_healthy_links_that_are_full_drop_little() -> None:
    """In a tree several hosts send to one NIC: that is crowded, but no fault."""
    told = [scenario(*lines, cluster=cluster(transport="socket"), job=TREE) for lines in ((), (SLOW_TAKER,))]
    healthy, faulty = (link_faults(each)["drops"] for each in told)
    assert healthy["leaf0:h1/eth0"] < faulty["leaf0:h1/eth0"] / 5


@pytest.mark.parametrize("part", ["nic:h1/eth0", "link:h1/eth0--leaf0"])
def test_carrier_is_lost_at_both_ends_and_comes_back(part: str) -> None:
    tables = follow(broken(f"at 5 s fail {part} down", "at 15 s heal"), 20)
    down = {row["ts_ns"] for row in tables["nic_counters"].to_pylist() if not row["up"]}
    assert down == {T0 + second * NS_PER_S for second in range(5, 15)}
    (nic,) = [row for row in rows_at(tables, "nic_counters", 10) if not row["up"]]
    (port,) = [row for row in rows_at(tables, "fabric_counters", 10) if not row["up"]]
    assert (nic["host"], nic["nic"], nic["speed_mbps"]) == ("h1", "eth0", None)
    assert (port["switch"], port["port"], port["speed_mbps"]) == ("leaf0", "h1/eth0", None)
    assert all(row["up"] for row in rows_at(tables, "fabric_counters", 20))


@pytest.mark.parametrize(("transport", "column"), [("ib", "local_ack_timeout_err"), ("socket", "retrans")])
def test_who_sends_into_a_dead_link_sends_again(transport: str, column: str) -> None:
    tables = follow(broken("at 5 s fail nic:h1/eth0 down", transport=transport), 20)
    senders = nics_with(tables, column, 20)
    assert "h1/eth0" in senders
    assert {nic.partition("/")[0] for nic in senders} == {"h0", "h1"}
    assert max(senders.values()) <= 20


def test_what_hangs_on_a_switch_or_a_host_that_is_gone_is_down() -> None:
    tables = follow(broken("at 5 s fail switch:leaf0 down"), 10)
    ports = rows_at(tables, "fabric_counters", 10)
    assert {row["switch"] for row in ports} == {"leaf1", "spine0", "spine1"}  # it tells nothing itself
    assert {(row["switch"], row["port"]) for row in ports if not row["up"]} == {
        (f"spine{number}", "leaf0") for number in (0, 1)
    }
    assert {row["host"] for row in rows_at(tables, "nic_counters", 10) if not row["up"]} == {"h0", "h1"}
    ports = rows_at(follow(broken("at 5 s fail host:h3 gone"), 10), "fabric_counters", 10)
    assert {row["switch"] + ":" + row["port"] for row in ports if not row["up"]} == {"leaf1:h3/eth0", "leaf1:h3/eth1"}


def test_what_ended_late_is_counted_late_and_not_lost() -> None:
    tables, operations = follow_all(broken("at 2 s fail nic:h1/eth0 down", "at 6 s heal"), 10)
    by_second = [sum(nics_with(tables, "tx_bytes", second).values()) for second in range(11)]
    assert by_second[3] == by_second[6] < by_second[7]
    assert by_second[10] == moved_bytes(operations, 10)


@pytest.mark.parametrize("transport", long_except(["socket"], ["ib", "socket"]))
def test_readings_do_not_depend_on_how_far_ahead_operations_are_noted(transport: str) -> None:
    lines = ("at 2 s fail rank:5 killed", "at 12 s restart with h4 for h1 after 3 s", "at 14 s heal")
    told = broken(*lines, transport=transport, spares=2)
    simulation = Simulation(told, 1)
    devices = DeviceTelemetry(simulation, T0)
    for operation in simulation.run_until(20 * NS_PER_S):
        devices.note(operation)
    ahead = [devices.until(second * NS_PER_S) for second in range(21)]
    for name, rows in follow(told, 20).items():
        assert rows.equals(joined(ahead)[name]), name
