"""What happens to an RDMA port is told once, with what was seen."""

from pathlib import Path

import pytest

from collector.sources.rdma import RdmaSource
from tests.builders import SECOND, T0
from tests.collector.sources.imitated_rdma import Host, imitate_port, rows


def test_port_that_goes_down_and_comes_back_is_reported_each_time_once(tmp_path: Path) -> None:
    port = imitate_port(tmp_path, netdev="ib0")
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


def test_port_that_is_down_from_the_beginning_is_no_event(tmp_path: Path) -> None:
    imitate_port(tmp_path, state="1: DOWN")
    host = Host(tmp_path)
    assert host.kinds() + host.kinds() == []


def test_event_names_source_host_and_part(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    source = RdmaSource("h0", tmp_path)
    source.read(T0, ())
    (port / "state").write_text("1: DOWN\n")
    (event,) = rows(source, "events", T0 + SECOND)
    assert (event["host"], event["ts_ns"], event["source"]) == ("h0", T0 + SECOND, "rdma")
    assert event["component"] == "nic:h0/mlx5_0"


def test_device_that_vanishes_is_reported_once_and_so_is_its_return(tmp_path: Path) -> None:
    imitate_port(tmp_path)
    host = Host(tmp_path)
    host.events()
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    device.rename(tmp_path / "elsewhere")
    gone = "mlx5_0 is no longer listed by the kernel; before it was ACTIVE"
    assert host.events() == [("nic_gone", "error", gone)]
    assert host.events() == []
    (tmp_path / "elsewhere").rename(device)
    assert host.events() == [("link_up", "info", "mlx5_0 is listed again and ACTIVE")]
    assert host.events() == []


def test_device_that_vanishes_before_it_could_ever_be_read_is_reported_too(tmp_path: Path) -> None:
    imitate_port(tmp_path, state="garbage")
    host = Host(tmp_path)
    assert host.events() == []
    (tmp_path / "sys/class/infiniband/mlx5_0").rename(tmp_path / "elsewhere")
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
    host = Host(tmp_path)
    assert host.events() == []
    (port / "counters/link_downed").write_text("2\n")
    ((kind, severity, message),) = host.events()
    assert (kind, severity) == ("link_downed", "error")
    assert message.startswith("mlx5_0 (ib0): link_downed grew by 2 (0 to 2) in 1.0 s, more than 0 in 1 s: ")
    assert host.events() == []


def test_counter_in_hw_counters_breaks_a_rule_too(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    host = Host(tmp_path)
    host.events()
    (port / "hw_counters/local_ack_timeout_err").write_text("7\n")
    assert host.kinds() == ["local_ack_timeout_err"]


def test_rules_of_one_port_do_not_look_at_another(tmp_path: Path) -> None:
    ports = [imitate_port(tmp_path, device) for device in ("mlx5_0", "mlx5_1")]
    (ports[0] / "counters/link_downed").write_text("5\n")
    host = Host(tmp_path)
    assert host.kinds() + host.kinds() == []


def test_counters_that_were_reset_are_no_event(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    (port / "counters/link_downed").write_text("500\n")
    host = Host(tmp_path)
    host.events()
    (port / "counters/link_downed").write_text("3\n")
    assert host.kinds() + host.kinds() == []


def test_counters_of_a_device_that_came_back_begin_anew(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    device = port.parent.parent
    host = Host(tmp_path)
    host.events()
    device.rename(tmp_path / "elsewhere")
    host.events()
    (tmp_path / "elsewhere").rename(device)
    (port / "counters/link_downed").write_text("1\n")
    assert host.kinds() == ["link_up"]
