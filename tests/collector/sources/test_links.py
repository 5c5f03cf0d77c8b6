"""NICs are read from /sys as they are: healthy, down, silent about themselves, or speaking nonsense."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.sources.links import LinksSource
from lockstep.arrow import schema_of
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0

COUNTERS = {
    "rx_bytes": 2**64 - 1,
    "tx_bytes": 1_000,
    "rx_errors": 1,
    "tx_errors": 2,
    "rx_dropped": 3,
    "tx_dropped": 4,
    "rx_crc_errors": 5,
    "multicast": 6,
}


def imitate_nic(root: Path, name: str, *, device: bool = True, **files: str) -> Path:
    """Make a NIC as the kernel shows it below `root`; `files` replaces what a healthy one has."""
    nic = root / "sys/class/net" / name
    (nic / "statistics").mkdir(parents=True)
    if device:
        (nic / "device").mkdir()
    for file, text in {"operstate": "up", "carrier": "1", "speed": "200000", **files}.items():
        (nic / file).write_text(text + "\n")
    for counter, value in COUNTERS.items():
        (nic / "statistics" / counter).write_text(f"{value}\n")
    return nic


def read(root: Path, now_ns: int = T0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = LinksSource("h0", root).read(now_ns, ()).tables["nic_counters"].to_pylist()
    return rows


def test_healthy_nic_is_read_with_all_its_counters(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "eth0")
    (row,) = read(tmp_path)
    assert row == {
        "host": "h0",
        "ts_ns": T0,
        "nic": "eth0",
        "up": True,
        "speed_mbps": 200_000,
        "rx_bytes": 2**64 - 1,
        "tx_bytes": 1_000,
        "rx_errors": 1,
        "tx_errors": 2,
        "rx_drops": 3,
        "tx_drops": 4,
        "retrans": None,
        "extra": [("rx_crc_errors", 5), ("multicast", 6)],
    }


def test_reading_has_the_table_s_schema_and_is_complete_up_to_now(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "eth0")
    reading = LinksSource("h0", tmp_path).read(T0, ())
    assert reading.tables["nic_counters"].schema == schema_of(TABLE_BY_NAME["nic_counters"])
    assert reading.watermark_ns == T0


def test_nics_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("eth1", "eth0", "ib0"):
        imitate_nic(tmp_path, name)
    assert [row["nic"] for row in read(tmp_path)] == ["eth0", "eth1", "ib0"]


def test_interfaces_without_a_device_and_stray_files_are_no_nics(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "eth0")
    imitate_nic(tmp_path, "lo", device=False)
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    assert [row["nic"] for row in read(tmp_path)] == ["eth0"]


def test_port_that_is_down_is_down_and_its_speed_unknown(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "eth0", operstate="down", carrier="0", speed="-1")
    (row,) = read(tmp_path)
    assert (row["up"], row["speed_mbps"]) == (False, None)


@pytest.mark.parametrize(("carrier", "up"), [("1", True), ("0", False)])
def test_carrier_decides_where_the_driver_keeps_no_state(tmp_path: Path, carrier: str, up: bool) -> None:
    imitate_nic(tmp_path, "eth0", operstate="unknown", carrier=carrier)
    (row,) = read(tmp_path)
    assert row["up"] is up


@pytest.mark.parametrize("speed", ["", "fast", "-1", "0", "4294967295"])
def test_speed_that_is_no_rate_is_unknown_and_not_zero(tmp_path: Path, speed: str) -> None:
    imitate_nic(tmp_path, "eth0", speed=speed)
    (row,) = read(tmp_path)
    assert row["speed_mbps"] is None


def test_speed_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    nic = imitate_nic(tmp_path, "eth0")
    (nic / "speed").unlink()
    (nic / "speed").mkdir()  # reading it fails, as it does with EINVAL on a port without a link
    (row,) = read(tmp_path)
    assert row["speed_mbps"] is None


def test_host_without_a_nic_says_so_and_where_it_looked(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "lo", device=False)
    with pytest.raises(NotPresent, match=f"no NIC with a device in {tmp_path}/sys/class/net"):
        read(tmp_path)


def test_host_without_sys_has_no_nic(tmp_path: Path) -> None:
    with pytest.raises(NotPresent):
        read(tmp_path)


@pytest.mark.parametrize("text", ["garbage\n", "", "-5\n", "1.5\n", "18446744073709551616\n"])
def test_nic_that_answers_nonsense_is_left_out_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    broken = imitate_nic(tmp_path, "eth0")
    imitate_nic(tmp_path, "eth1")
    (broken / "statistics/rx_errors").write_text(text)
    with capture_logs() as lines:
        assert [row["nic"] for row in read(tmp_path)] == ["eth1"]
    assert [(line["event"], line["nic"]) for line in lines] == [("NIC cannot be read and is left out", "eth0")]


def test_nic_that_answers_nonsense_is_told_once_and_again_after_it_was_well(tmp_path: Path) -> None:
    counter = imitate_nic(tmp_path, "eth0") / "statistics/rx_errors"
    source = LinksSource("h0", tmp_path)
    with capture_logs() as lines:
        for text in ("garbage", "garbage", "1", "garbage"):
            counter.write_text(text)
            source.read(T0, ())
    assert len(lines) == 2


def test_counter_that_the_driver_does_not_have_is_left_out_of_the_extras(tmp_path: Path) -> None:
    nic = imitate_nic(tmp_path, "eth0")
    (nic / "statistics/rx_crc_errors").unlink()
    (row,) = read(tmp_path)
    assert row["extra"] == [("multicast", 6)]
