"""NICs are read from /sys as they are: healthy, down, silent about themselves, or speaking nonsense."""

import shutil
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from collector.kernel.link_reader import KernelLinks
from collector.kernel.links import REQUIRED, Link, LinkSnapshot
from collector.sources.links import FLAPPING_DOWNS, FLAPPING_NS, LinksSource, LinkWatch
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0
from tests.collector.kernel.test_inet_diag import flow, table
from tests.collector.sources.reader import Reader, Row

COUNTERS = {"rx_bytes": 2**64 - 1, "tx_bytes": 1_000, "rx_errors": 1, "tx_errors": 2}
COUNTERS |= {"rx_dropped": 3, "tx_dropped": 4, "rx_crc_errors": 5, "multicast": 6}


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


def read(root: Path) -> list[Row]:
    return Reader(LinksSource("h0", root)).rows("nic_counters")


def a_link(**counters: int) -> Link:
    statistics = dict.fromkeys(REQUIRED, 0) | counters
    return Link("eth0", 2, True, True, operstate="up", has_device=True, statistics=statistics)


def kernel_of(*answers: OSError | LinkSnapshot) -> Mock:
    """Return a kernel that gives these looks, one after the other: what a real one does only by chance."""
    speed = Mock(return_value=100)
    return Mock(spec=KernelLinks, overruns=0, read=Mock(side_effect=answers), read_speed=speed)


def opening(*answers: LinkSnapshot) -> Mock:
    return Mock(return_value=kernel_of(*answers))


def test_nics_are_read_with_all_their_counters_in_the_order_of_their_names_and_other_interfaces_are_none(
    tmp_path: Path,
) -> None:
    for _ in range(2):  # without /sys, and with a NIC that is none
        with pytest.raises(NotPresent, match=f"no NIC with a device in {tmp_path}/sys/class/net"):
            read(tmp_path)
        shutil.rmtree(tmp_path / "sys", ignore_errors=True)
        imitate_nic(tmp_path, "lo", device=False)
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    for name in ("eth1", "eth0", "ib0"):
        imitate_nic(tmp_path, name)
    (tmp_path / "sys/class/net/ib0/statistics/rx_crc_errors").unlink()  # not every driver has it
    rows = read(tmp_path)
    assert [row["nic"] for row in rows] == ["eth0", "eth1", "ib0"]
    assert rows[2]["extra"] == [("multicast", 6)]
    expected = {"host": "h0", "ts_ns": T0 + SECOND, "nic": "eth0", "up": True, "speed_mbps": 200_000}
    expected |= {name: COUNTERS[name] for name in ("rx_bytes", "tx_bytes", "rx_errors", "tx_errors")}
    expected |= {"rx_drops": 3, "tx_drops": 4, "extra": [("multicast", 6), ("rx_crc_errors", 5)]}
    assert rows[0] == expected | {"retrans": None}


def test_carrier_decides_where_there_is_no_state_and_a_speed_that_is_no_rate_is_unknown(tmp_path: Path) -> None:
    nic = imitate_nic(tmp_path, "eth0")
    for operstate, carrier, speed, up, told in (
        ("down", "0", "-1", False, None),
        ("unknown", "1", "200000", True, 200_000),
        ("unknown", "0", "200000", False, 200_000),
        *(("up", "1", speed, True, None) for speed in ("", "fast", "-1", "0", "4294967295")),
    ):
        for file, text in {"operstate": operstate, "carrier": carrier, "speed": speed}.items():
            (nic / file).write_text(text + "\n")
        assert [(row["up"], row["speed_mbps"]) for row in read(tmp_path)] == [(up, told)]
    (nic / "speed").unlink()
    (nic / "speed").mkdir()  # reading it fails, as it does with EINVAL on a port without a link
    assert [row["speed_mbps"] for row in read(tmp_path)] == [None]


def test_nic_that_answers_nonsense_is_left_out_reported_once_and_is_not_gone(tmp_path: Path) -> None:
    counter = imitate_nic(tmp_path, "eth0") / "statistics/rx_errors"
    imitate_nic(tmp_path, "eth1")
    source = LinksSource("h0", tmp_path)
    for text in ("garbage", "", "-5", "1.5", "18446744073709551616"):
        with capture_logs() as lines:
            for written in (text, text, "1"):
                counter.write_text(written + "\n")
                tables = source.read(T0, ()).tables
                nics = tables["nic_counters"]["nic"].to_pylist()
                assert nics == (["eth0", "eth1"] if written == "1" else ["eth1"])
                assert tables["events"].num_rows == 0
        assert [(line["event"], line["nic"]) for line in lines] == [("NIC cannot be read and is left out", "eth0")]


def test_carriers_lost_between_two_readings_are_seen_in_the_driver_s_count(tmp_path: Path) -> None:
    nic = imitate_nic(tmp_path, "eth0", carrier_down_count="3", carrier_up_count="4")
    host = Reader(LinksSource("h0", tmp_path))
    assert host.kinds() == []
    (nic / "carrier_down_count").write_text("4\n")
    (nic / "carrier_up_count").write_text("5\n")
    assert host.kinds() == ["link_down", "link_up"]
    (row,) = host.rows("nic_counters")
    assert dict(row["extra"])["carrier_downs"] == 4


def test_port_that_goes_down_somebody_took_down_or_vanishes_is_reported(tmp_path: Path) -> None:
    nic = imitate_nic(tmp_path, "eth0", flags="0x1003")
    host = Reader(LinksSource("h0", tmp_path))
    assert host.kinds() == []
    (nic / "operstate").write_text("down\n")
    (nic / "flags").write_text("0x1002\n")
    (event,) = host.rows("events")
    assert (event["kind"], event["component"], event["severity"]) == ("link_down", "nic:h0/eth0", "error")
    assert event["message"] == "eth0 went down: it was taken down on this host"
    shutil.rmtree(nic)
    assert host.kinds() == ["nic_gone"]
    assert host.kinds() == []
    imitate_nic(tmp_path, "eth0")
    assert host.kinds() == ["link_up"]


def test_files_are_read_while_the_kernel_refuses_netlink_and_it_is_asked_again_later(tmp_path: Path) -> None:
    imitate_nic(tmp_path, "eth0")
    source = LinksSource("h0", tmp_path, open_kernel=Mock(side_effect=PermissionError(1, "Operation not permitted")))
    with closing(source), capture_logs() as lines:
        for _ in range(2):
            (row,) = source.read(T0, ()).tables["nic_counters"].to_pylist()
            assert (row["nic"], row["rx_errors"], row["retrans"]) == ("eth0", 1, None)
    told = [(line["event"], line["error"]) for line in lines]
    assert told == [("the kernel refuses netlink, files are read instead", "Operation not permitted")]
    kernels = [kernel_of(TimeoutError("timed out")), kernel_of(LinkSnapshot(links=[a_link(rx_errors=77)]))]
    with closing(LinksSource("h0", tmp_path, open_kernel=Mock(side_effect=kernels))) as source:
        found = [source.read(T0, ()).tables["nic_counters"]["rx_errors"].to_pylist() for _ in range(2)]
    assert found == [[1], [77]]
    assert [kernel.close.call_count for kernel in kernels] == [1, 1]


def test_list_that_may_lack_a_nic_makes_none_gone_and_flows_are_those_of_the_nic_below_or_unknown(
    tmp_path: Path,
) -> None:
    whole, part = LinkSnapshot(links=[a_link()]), LinkSnapshot(links=[], is_whole=False)
    with closing(LinksSource("h0", tmp_path, open_kernel=opening(whole, part, LinkSnapshot(links=[])))) as source:
        host = Reader(source)
        assert [host.kinds() for _ in range(3)] == [[], [], ["nic_gone"]]
    refuse = Mock(side_effect=NotPresent("the kernel does not list TCP sockets: Operation not permitted"))
    unlisted = opening(*[LinkSnapshot(links=[a_link()], addresses={})] * 2)
    source = LinksSource("h0", tmp_path, open_kernel=unlisted, read_flows=refuse)
    with capture_logs() as lines:
        assert [source.read(T0, ()).tables["nic_counters"]["retrans"].to_pylist() for _ in range(2)] == [[None]] * 2
    assert [line["event"] for line in lines] == ["retransmissions are not counted"]
    vlan = replace(a_link(), name="eth0.7", index=9, has_device=False, kind="vlan", lower=2)
    here = socket.inet_pton(socket.AF_INET6, "::ffff:10.0.0.1")
    snapshot = LinkSnapshot(links=[vlan, a_link()], addresses={here: 9})
    flows = Mock(return_value=table(flow(1, 5, local="10.0.0.1", remote="10.0.0.2")))
    source = LinksSource("h0", tmp_path, open_kernel=opening(snapshot), read_flows=flows)
    (row,) = source.read(T0, ()).tables["nic_counters"].to_pylist()
    assert (row["nic"], row["retrans"]) == ("eth0", 5)


def link(
    *, up: bool = True, downs: int | None = 5, ups: int | None = 6, enabled: bool = True, index: int = 2
) -> Link:
    operstate = "up" if up else "down"
    return Link("eth0", index, up, enabled, operstate, has_device=True, carrier_downs=downs, carrier_ups=ups)


class Nic:
    """A NIC that is watched; each sight comes a second after the one before."""

    def __init__(self, first: Link) -> None:
        self.watch = LinkWatch("h0", "eth0")
        self.now_ns = T0
        assert self.watch.observe(T0, first) == []

    def see(self, seen: Link, *, is_notice: bool = False) -> list[str]:
        self.now_ns += SECOND
        self.events = self.watch.observe(self.now_ns, seen, is_notice)
        return [event.kind for event in self.events]


DOWN, UP, BOTH = ["link_down"], ["link_up"], ["link_down", "link_up"]
SILENT, SILENT_DOWN = link(downs=None, ups=None), link(up=False, downs=None, ups=None)


@pytest.mark.parametrize(
    ("first", "sights"),
    [
        (link(), [(link(), False, []), (link(), True, [])]),
        (link(up=False), [(link(up=False), False, []), (link(ups=7), False, UP)]),
        (link(up=False), [(link(up=False, downs=6, ups=7), False, DOWN)]),  # came up and was lost unseen
        (
            link(),  # notices that the reading has overtaken
            [(link(downs=6, ups=7), False, BOTH)]
            + [(late, True, []) for late in (link(up=False, downs=6), link(up=False, downs=6, ups=7))]
            + [(link(downs=6, ups=7), True, [])],
        ),
        (link(), [(link(up=False), True, []), (link(up=False), False, DOWN)]),  # before the kernel corrects its state
        (SILENT, [(SILENT_DOWN, True, DOWN), (SILENT, True, UP)]),
        (
            link(downs=100, ups=100),  # made anew under the old name
            [(link(downs=0, ups=1, index=9), False, []), (link(downs=1, ups=2, index=9), False, BOTH)],
        ),
    ],
)
def test_change_is_reported_once(first: Link, sights: list[tuple[Link, bool, list[str]]]) -> None:
    nic = Nic(first)
    assert [nic.see(seen, is_notice=is_notice) for seen, is_notice, _ in sights] == [kinds for *_, kinds in sights]


def test_nic_that_goes_down_is_gone_or_returns_is_reported_with_its_component_and_time_and_how_it_came_about() -> (
    None
):
    nic = Nic(link())
    assert nic.see(link(up=False, downs=6)) == DOWN
    (event,) = nic.events
    assert (event.source, event.component, event.severity) == ("links", "nic:h0/eth0", "error")
    assert (event.ts_ns, event.message) == (T0 + SECOND, "eth0 went down: its state is down")
    assert nic.see(link(downs=6, ups=7)) == UP
    assert nic.events[0].severity == "info"
    losses = {
        "eth0 went down: it was taken down on this host": link(up=False, enabled=False),
        "eth0 lost its carrier and had it again before it was read": link(downs=6, ups=7),
        "eth0 went down 2 times since the last reading: its state is down": link(up=False, downs=7, ups=7),
    }
    for message, seen in losses.items():
        nic = Nic(link())
        nic.see(seen)
        assert nic.events[0].message == message
        assert nic.see(seen) == []
    assert LinkWatch("h0", "eth0").lose(T0) == [], "it was never seen"
    nic = Nic(link())
    assert [(event.kind, event.message) for event in nic.watch.lose(T0)] == [
        ("nic_gone", "eth0 is no longer there; before it was up")
    ]
    assert nic.watch.lose(T0 + SECOND) == []
    assert nic.see(link(downs=0, ups=1, index=9)) == UP


def test_nic_that_flaps_is_reported_once_and_again_after_a_quiet_time_and_losses_far_apart_are_no_flapping() -> None:
    nic = Nic(link(downs=0))
    for count in range(1, 10):
        nic.now_ns += FLAPPING_NS // 2 + SECOND
        assert nic.see(link(downs=count)) == BOTH
    nic = Nic(link(downs=0))
    kinds = [nic.see(link(downs=count)) for count in range(1, FLAPPING_DOWNS + 3)]
    assert [("link_flapping" in each) for each in kinds] == [False, False, True, False, False]
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    nic.now_ns += FLAPPING_NS + SECOND
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    assert nic.see(link(downs=2 * FLAPPING_DOWNS + 2)) == ["link_down", "link_up", "link_flapping"]
    assert nic.events[-1].message == "eth0 went down 3 times within 10 minutes"
