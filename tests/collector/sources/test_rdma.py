"""RDMA ports are read from /sys as they are, and what happens to one is told once, with what was seen."""

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.sources.rdma import CounterRule, RdmaSource, Rise, RuleWatch, load_rules
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0
from tests.collector.sources.imitated_rdma import COUNTERS, HW_COUNTERS, host_of, imitate_port


def read(root: Path) -> list[dict[str, Any]]:
    return host_of(root).rows("nic_counters")


def test_ports_are_read_with_all_their_counters_each_by_its_name(tmp_path: Path) -> None:
    for device, port in (("mlx4_0", "2"), ("mlx4_0", "1"), ("mlx5_1", "1")):
        imitate_port(tmp_path, device, port)
    (tmp_path / "sys/class/infiniband/mlx5_1/ports/1/hw_counters/lifespan").write_text("12\n")  # no counter
    rows = read(tmp_path)
    assert [row["nic"] for row in rows] == ["mlx4_0:1", "mlx4_0:2", "mlx5_1"]
    assert dict(rows[2].pop("extra")) == {**COUNTERS, **HW_COUNTERS}
    expected = {"host": "h0", "ts_ns": T0 + SECOND, "nic": "mlx5_1", "up": True, "speed_mbps": 400_000}
    expected |= {"rx_bytes": 4_000, "tx_bytes": 8_000, "rx_errors": 1, "tx_errors": 2, "rx_drops": 4, "tx_drops": 3}
    assert rows[2] == expected | {"retrans": 5 + 6 + 7}


NO_RATES = ["", "fast", "-1 Gb/sec", "0 Gb/sec", "nan Gb/sec", "inf Gb/sec", "400 Tb/sec", "9e9 Gb/sec"]


def test_port_is_up_when_it_is_active_and_a_rate_that_is_none_is_unknown(tmp_path: Path) -> None:
    port, usual = imitate_port(tmp_path), {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
    cases: list[tuple[dict[str, str], bool, int | None]] = [
        *(({"state": state}, False, None) for state in ("1: DOWN", "2: INIT", "3: ARMED")),
        ({"rate": "2.5 Gb/sec (1X SDR)"}, True, 2_500),
        ({"rate": "200 Gb/sec (2X NDR)"}, True, 200_000),
        *(({"rate": rate}, True, None) for rate in NO_RATES),
    ]
    for files, up, speed in cases:
        for name, text in (usual | files).items():
            (port / name).write_text(text + "\n")
        assert [(row["up"], row["speed_mbps"]) for row in read(tmp_path)] == [(up, speed)]


def test_ethernet_port_is_down_with_its_interface_and_an_infiniband_port_is_not(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no RDMA port in {tmp_path}/sys/class/infiniband"):
        read(tmp_path)
    ethernet = imitate_port(tmp_path, "rdmap0", netdev="ens5", link_layer="Unknown")
    infiniband = imitate_port(tmp_path, netdev="ib0")
    host = host_of(tmp_path)
    assert host.events() == []
    (ethernet / "../../device/net/ens5/operstate").write_text("down\n")
    (infiniband / "../../device/net/ib0/operstate").write_text("down\n")
    ((kind, _, message),) = host.events()
    assert kind == "link_down"
    assert message.endswith("its network interface is down")
    assert {row["nic"]: row["up"] for row in read(tmp_path)} == {"mlx5_0": True, "rdmap0": False}


def test_port_without_a_state_or_a_row_s_counters_is_left_out_rather_than_zero_and_reported_once(
    tmp_path: Path,
) -> None:
    port = imitate_port(tmp_path)
    for text in ("garbage", "", "-5", "1.5", "18446744073709551616"):
        (port / "counters/symbol_error").write_text(text)
        host = host_of(tmp_path)
        with capture_logs() as lines:
            found = [row for _ in range(2) for row in host.rows("nic_counters")]
        assert ["symbol_error" in dict(row["extra"]) for row in found] == [False, False], text
        assert [line["problem"] for line in lines] == ["counters that cannot be read: symbol_error"]
    (port / "hw_counters/packet_seq_err").unlink()
    assert [row["retrans"] for row in read(tmp_path)] == [None], "a part of it is unknown"
    (port / "counters/port_rcv_data").write_text(str(2**62))
    assert read(tmp_path) == [], "it is too large in bytes"
    (port / "counters/symbol_error").unlink()
    (port / "counters/port_rcv_data").write_text("1")
    (port / "counters/port_rcv_errors").unlink()
    imitate_port(tmp_path, "mlx5_1")
    host = host_of(tmp_path)
    with capture_logs() as lines:
        assert [row["nic"] for row in host.rows("nic_counters")] == ["mlx5_1"]
    assert [line["problem"] for line in lines] == ["no row, because nothing counts rx_errors"]
    (port / "state").write_text("1: DOWN\n")
    assert host.kinds() == ["link_down"]
    for state in ("", "garbage", ": ", "x: ACTIVE"):
        (port / "state").write_text(state)
        host = host_of(tmp_path)
        with capture_logs() as lines:
            assert host.events() == host.events() == []
            assert [row["nic"] for row in host.rows("nic_counters")] == ["mlx5_1"]
        assert [line["nic"] for line in lines] == ["mlx5_0"]


def test_ports_of_a_real_h100_host_are_read(tmp_path: Path) -> None:
    public = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not public:
        pytest.skip("LOCKSTEP_PUBLIC_DATA does not name the folder with public data: no real ports to read")
    with tarfile.open(Path(public) / "host_health_gpud/sysfs_infiniband.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys-class-infiniband-h100.0").rename(tmp_path / "sys/class/infiniband")
    found = {row["nic"]: row for row in read(tmp_path)}
    assert sorted(found) == [f"mlx5_{number}" for number in (0, 1, 4, 5, 6, 7, 8, 9)] + ["mlx5_bond_0"]
    assert {row["up"] for row in found.values()} == {True}
    assert (found["mlx5_0"]["speed_mbps"], found["mlx5_bond_0"]["speed_mbps"]) == (400_000, 200_000)
    assert found["mlx5_1"]["rx_bytes"] == 205_128_687_774_249 * 4
    assert len(found["mlx5_0"]["extra"]) == 46  # 21 counters and 26 hw_counters, one of which is a setting


def test_port_that_goes_down_and_comes_back_is_reported_each_time_once(tmp_path: Path) -> None:
    port = imitate_port(tmp_path, netdev="ib0")
    imitate_port(tmp_path, "mlx5_1", state="1: DOWN")  # from the beginning, which is no event
    host = host_of(tmp_path)
    assert host.events() == []
    (port / "state").write_text("1: DOWN\n")
    (port / "phys_state").write_text("2: Polling\n")
    down = "mlx5_0 (ib0) went from ACTIVE to DOWN, physical state Polling"
    assert host.events() == [("link_down", "error", down)]
    assert host.events() == []
    (port / "state").write_text("2: INIT\n")
    assert host.events() == []
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").unlink()
    assert host.events() == [("link_up", "info", "mlx5_0 (ib0) went from INIT to ACTIVE, physical state unknown")]
    (port / "state").write_text("1: DOWN\n")
    (event,) = host.rows("events")
    assert (event["host"], event["ts_ns"], event["source"]) == ("h0", host.now_ns, "rdma")
    assert event["component"] == "nic:h0/mlx5_0"


def test_device_that_vanishes_is_reported_once_and_so_is_its_return_with_counters_begun_anew(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    imitate_port(tmp_path, "mlx5_1", state="garbage")  # vanishes before it could ever be read
    host = host_of(tmp_path)
    assert host.events() == []
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    device.rename(tmp_path / "elsewhere")
    gone = "mlx5_0 is no longer listed by the kernel; before it was ACTIVE"
    assert host.events() == [("nic_gone", "error", gone)]
    assert host.events() == []
    (tmp_path / "elsewhere").rename(device)
    (port / "counters/link_downed").write_text("1\n")
    assert host.events() == [("link_up", "info", "mlx5_0 is listed again and ACTIVE")]
    assert host.events() == []
    device.with_name("mlx5_1").rename(tmp_path / "elsewhere")
    assert [host.kinds(), host.kinds()] == [["nic_gone"], []]


def test_devices_that_come_and_go_under_ever_new_names_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.sources.rdma._MAX_WATCHES", 2)
    source = RdmaSource("h0", tmp_path)
    port = imitate_port(tmp_path)
    (port / "counters/port_xmit_data").unlink()  # so that there is something to complain about
    device = port.parent.parent
    for number in range(5):
        device = device.rename(device.with_name(f"mlx5_{number}"))
        source.read(T0 + number * SECOND, ())
    assert sorted(source._watches) == ["mlx5_3", "mlx5_4"]
    assert {nic for _, nic in source._problems._known} == {"mlx5_3", "mlx5_4"}


def test_counter_that_breaks_a_rule_is_reported_with_what_was_seen(tmp_path: Path) -> None:
    port = imitate_port(tmp_path, netdev="ib0")
    other = imitate_port(tmp_path, "mlx5_1")
    (other / "counters/link_downed").write_text("500\n")  # the rules of one port do not look at another
    host = host_of(tmp_path)
    assert host.events() == host.events() == []
    (port / "counters/link_downed").write_text("2\n")
    ((kind, severity, message),) = host.events()
    assert (kind, severity) == ("link_downed", "error")
    assert message.startswith("mlx5_0 (ib0): link_downed grew by 2 (0 to 2) in 1.0 s, more than 0 in 1 s: ")
    assert host.events() == []
    (port / "hw_counters/local_ack_timeout_err").write_text("7\n")
    (other / "counters/link_downed").write_text("3\n")  # it was reset
    assert [host.kinds(), host.kinds()] == [["local_ack_timeout_err"], []]


def rule(threshold: int = 10, window_s: int = 1) -> CounterRule:
    return CounterRule("symbol_error", threshold, window_s, "warning", "bit errors")


def follow(watched: CounterRule, samples: Iterable[tuple[float, int]]) -> list[tuple[float, Rise]]:
    """Return what a rule says about (seconds, value), each with its second."""
    watch = RuleWatch(watched)
    reported = [(at_s, watch.observe(T0 + round(at_s * SECOND), value)) for at_s, value in samples]
    return [(at_s, rise) for at_s, rise in reported if rise]


def test_rules_are_those_that_nvsentinel_publishes() -> None:
    rules = {(rule.counter, rule.severity): (rule.threshold, rule.window_s) for rule in load_rules()}
    assert len(rules) == len(load_rules()) == 17
    overruns = "excessive_buffer_overrun_errors"
    fatal = ("link_downed", overruns, "local_link_integrity_errors", "rnr_nak_retry_err")
    published = {(counter, "error"): (0, 1) for counter in fatal} | {("symbol_error", "error"): (120, 3600)}
    published |= {(counter, "warning"): (10, 1) for counter in ("symbol_error", "roce_slow_restart")}
    assert rules.items() >= (published | {("link_error_recovery", "warning"): (5, 60)}).items()
    assert all(rule.meaning and rule.threshold >= 0 and rule.window_s > 0 for rule in load_rules())
    assert {rule.severity for rule in load_rules()} == {"warning", "error"}


HOUR = rule(threshold=120, window_s=3600)


@pytest.mark.parametrize(
    ("watched", "samples", "reported"),
    [
        (rule(), [(second, 10 * second) for second in range(100)], []),  # growth up to the threshold
        (rule(threshold=0), [(0, 10_000), (1, 10_000)], []),  # a first value however high
        (rule(threshold=0), [(0, 7), (1, 7), (2, 8)], [(2, 7, 8)]),
        # A rise that goes on, and the next; one calm window ends a rise.
        (rule(), list(enumerate([0, 50, 100, 150, 150, 150, 200, 250])), [(1, 0, 50), (6, 150, 200)]),
        (rule(), list(enumerate([0, 50, 50, 100])), [(1, 0, 50), (3, 50, 100)]),
        (rule(), [(0, 1_000), (1, 0), (2, 10), (3, 20)], []),  # a reset
        (rule(), [(0, 2**64 - 5), (1, 100), (2, 111)], [(2, 100, 111)]),  # a counter that wraps
        (rule(), [(0, 0), (1, 50), (2, 0), (3, 50)], [(1, 0, 50), (3, 0, 50)]),  # after a reset in a rise
        (HOUR, [(0, 1_000), (10, 0), (20, 130)], [(20, 0, 130)]),  # from the reset on in a long window
        (HOUR, [(second, second // 20) for second in range(3600)], [(2420, 0, 121)]),  # slow growth that adds up
        (HOUR, [(at_s, at_s // 31) for at_s in range(0, 40_000, 10)], []),  # growth below the rate
        # A read early or late; growth over a long pause counts by its mean.
        *((rule(), [(gap * n, 100 * n) for n in range(5)], [(gap, 0, 100)]) for gap in (0.99, 1.0, 1.01, 1.3)),
        (rule(), [(0, 0), (600, 5_000)], []),
        (rule(), [(0, 0), (600, 7_000)], [(600, 0, 7_000)]),
        (rule(), [(100, 0), (50, 1_000), (51, 1_001)], []),  # a clock that goes back
    ],
)
def test_rise_is_reported_once(
    watched: CounterRule, samples: list[tuple[float, int]], reported: list[tuple[float, int, int]]
) -> None:
    assert [(at_s, rise.before, rise.after) for at_s, rise in follow(watched, samples)] == reported


def test_rise_says_what_was_seen_and_the_memory_of_a_window_is_bounded() -> None:
    ((_, rise),) = follow(rule(), [(0, 5), (1, 16)])
    assert str(rise) == "symbol_error grew by 11 (5 to 16) in 1.0 s, more than 10 in 1 s: bit errors"
    watch = RuleWatch(rule(window_s=3600))
    for tenth in range(6_000):
        watch.observe(T0 + tenth * SECOND, 0)
    assert len(watch._samples) <= 62
