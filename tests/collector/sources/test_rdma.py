"""RDMA ports are read from /sys as they are: healthy, down, silent about themselves, or speaking nonsense."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.sources.rdma import RdmaSource
from lockstep.arrow import schema_of
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0
from tests.collector.sources.imitated_rdma import COUNTERS, HW_COUNTERS, Host, imitate_port, rows


def read(root: Path) -> list[dict[str, Any]]:
    return rows(RdmaSource("h0", root), "nic_counters")


def test_healthy_port_is_read_with_all_its_counters(tmp_path: Path) -> None:
    (imitate_port(tmp_path) / "hw_counters/lifespan").write_text("12\n")  # of the kernel's cache: no counter
    reading = RdmaSource("h0", tmp_path).read(T0, ())
    (row,) = reading.tables["nic_counters"].to_pylist()
    assert dict(row.pop("extra")) == {**COUNTERS, **HW_COUNTERS}
    expected = {"host": "h0", "ts_ns": T0, "nic": "mlx5_0", "up": True, "speed_mbps": 400_000, "retrans": 5 + 6 + 7}
    expected |= {"rx_bytes": 4_000, "tx_bytes": 8_000, "rx_errors": 1, "tx_errors": 2, "rx_drops": 4, "tx_drops": 3}
    assert row == expected
    schemas = {name: schema_of(TABLE_BY_NAME[name]) for name in ("nic_counters", "events")}
    assert {name: rows.schema for name, rows in reading.tables.items()} == schemas
    assert reading.watermark_ns == T0


def test_device_with_several_ports_names_each(tmp_path: Path) -> None:
    for device, port in (("mlx4_0", "2"), ("mlx4_0", "1"), ("mlx5_1", "1")):
        imitate_port(tmp_path, device, port)
    assert [row["nic"] for row in read(tmp_path)] == ["mlx4_0:1", "mlx4_0:2", "mlx5_1"]


NO_RATES = ["", "fast", "-1 Gb/sec", "0 Gb/sec", "nan Gb/sec", "inf Gb/sec", "400 Tb/sec", "9e9 Gb/sec"]


@pytest.mark.parametrize(
    ("files", "up", "speed"),
    [
        *(({"state": state}, False, None) for state in ("1: DOWN", "2: INIT", "3: ARMED")),
        ({"rate": "2.5 Gb/sec (1X SDR)"}, True, 2_500),
        ({"rate": "200 Gb/sec (2X NDR)"}, True, 200_000),
        *(({"rate": rate}, True, None) for rate in NO_RATES),
    ],
)
def test_port_is_up_when_it_is_active_and_a_rate_that_is_none_is_unknown(
    tmp_path: Path, files: dict[str, str], up: bool, speed: int | None
) -> None:
    imitate_port(tmp_path, **files)
    assert [(row["up"], row["speed_mbps"]) for row in read(tmp_path)] == [(up, speed)]


def test_ethernet_port_is_down_with_its_interface_and_an_infiniband_port_is_not(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no RDMA port in {tmp_path}/sys/class/infiniband"):
        read(tmp_path)
    ethernet = imitate_port(tmp_path, "rdmap0", netdev="ens5", link_layer="Unknown")
    infiniband = imitate_port(tmp_path, netdev="ib0")
    host = Host(tmp_path)
    assert host.events() == []
    (ethernet / "../../device/net/ens5/operstate").write_text("down\n")
    (infiniband / "../../device/net/ib0/operstate").write_text("down\n")
    ((kind, _, message),) = host.events()
    assert kind == "link_down"
    assert message.endswith("its network interface is down")
    assert {row["nic"]: row["up"] for row in read(tmp_path)} == {"mlx5_0": True, "rdmap0": False}


def test_counter_that_is_nonsense_is_left_out_and_reported_once(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    for text in ("garbage", "", "-5", "1.5", "18446744073709551616"):
        (port / "counters/symbol_error").write_text(text)
        source = RdmaSource("h0", tmp_path)
        with capture_logs() as lines:
            found = [row for _ in range(2) for row in rows(source, "nic_counters")]
        assert ["symbol_error" in dict(row["extra"]) for row in found] == [False, False], text
        assert [line["problem"] for line in lines] == ["counters that cannot be read: symbol_error"]


def test_port_without_the_counters_of_a_row_gives_none_rather_than_zeros_and_its_events(tmp_path: Path) -> None:
    port = imitate_port(tmp_path)
    (port / "counters/port_rcv_errors").unlink()
    imitate_port(tmp_path, "mlx5_1")
    source = RdmaSource("h0", tmp_path)
    with capture_logs() as lines:
        assert [row["nic"] for row in rows(source, "nic_counters")] == ["mlx5_1"]
    assert [line["problem"] for line in lines] == ["no row, because nothing counts rx_errors"]
    (port / "state").write_text("1: DOWN\n")
    assert [row["kind"] for row in rows(source, "events", T0 + SECOND)] == ["link_down"]


def test_retransmissions_are_unknown_when_a_part_is_and_a_counter_too_large_in_bytes_gives_no_row(
    tmp_path: Path,
) -> None:
    port = imitate_port(tmp_path)
    (port / "hw_counters/packet_seq_err").unlink()
    assert [row["retrans"] for row in read(tmp_path)] == [None]
    (port / "counters/port_rcv_data").write_text(str(2**62))
    assert read(tmp_path) == []


@pytest.mark.parametrize("state", ["", "garbage", ": ", "x: ACTIVE"])
def test_port_without_a_state_is_left_out_reported_once_and_no_event(tmp_path: Path, state: str) -> None:
    imitate_port(tmp_path, "mlx5_0")
    broken = imitate_port(tmp_path, "mlx5_1")
    host = Host(tmp_path)
    assert host.events() == []
    (broken / "state").write_text(state)
    with capture_logs() as lines:
        assert host.events() == host.events() == []
        assert [row["nic"] for row in read(tmp_path)] == ["mlx5_0"]
    assert [line["nic"] for line in lines] == ["mlx5_1", "mlx5_1"]  # once from each of the two sources


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
