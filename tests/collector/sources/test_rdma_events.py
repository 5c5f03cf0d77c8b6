"""What happens to an RDMA port is told once, with what was seen."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from collector.sources.rdma import CounterRule, RdmaSource, Rise, RuleWatch, load_rules
from tests.builders import SECOND, T0
from tests.collector.sources.imitated_rdma import Host, imitate_port, rows


def test_port_that_goes_down_and_comes_back_is_reported_each_time_once(tmp_path: Path) -> None:
    port = imitate_port(tmp_path, netdev="ib0")
    imitate_port(tmp_path, "mlx5_1", state="1: DOWN")  # from the beginning, which is no event
    host = Host(tmp_path)
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
    (event,) = rows(host.source, "events", T0 + 9 * SECOND)
    assert (event["host"], event["ts_ns"], event["source"]) == ("h0", T0 + 9 * SECOND, "rdma")
    assert event["component"] == "nic:h0/mlx5_0"


def test_device_that_vanishes_is_reported_once_and_so_is_its_return_with_counters_begun_anew(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    imitate_port(tmp_path, "mlx5_1", state="garbage")  # vanishes before it could ever be read
    host = Host(tmp_path)
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
    host = Host(tmp_path)
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
    for fatal in ("link_downed", overruns, "local_link_integrity_errors", "rnr_nak_retry_err"):
        assert rules[fatal, "error"] == (0, 1)
    assert rules["symbol_error", "error"] == (120, 3600)
    assert rules["symbol_error", "warning"] == (10, 1)
    assert rules["link_error_recovery", "warning"] == (5, 60)
    assert rules["roce_slow_restart", "warning"] == (10, 1)
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


def test_rise_is_reported_with_what_was_seen_and_the_memory_of_a_window_is_bounded() -> None:
    ((_, rise),) = follow(rule(), [(0, 5), (1, 16)])
    assert str(rise) == "symbol_error grew by 11 (5 to 16) in 1.0 s, more than 10 in 1 s: bit errors"
    watch = RuleWatch(rule(window_s=3600))
    for tenth in range(6_000):
        watch.observe(T0 + tenth * SECOND, 0)
    assert len(watch._samples) <= 62
