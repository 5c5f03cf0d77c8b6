"""NICs are watched over real netlink in namespaces of their own: real carriers, queues that overflow, real TCP."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from collector.kernel.link_reader import KernelLinks
from collector.kernel.links import LinkChanges
from collector.sources.links import LinksSource
from lockstep.clock import Clock, ManualClock
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0
from tests.collector.sources.link_namespaces import Flow, Pair, join, joined_namespaces
from tests.collector.sources.test_links import imitate_nic
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.needs_root
NOWHERE = Path("/no/such/root")


class Watcher:
    """The source at work in `here`; it sees no files."""

    def __init__(self, pair: Pair, open_kernel: Callable[[Path, Clock], KernelLinks] = KernelLinks) -> None:
        self._home = pair.here
        self.clock = ManualClock(T0)
        self.ahead_ns = 0  # of the clock, when it is read
        self._source = LinksSource("h0", NOWHERE, ("eth0",), clock=self.clock, open_kernel=open_kernel)
        self.read()

    def read(self) -> dict[str, Any]:
        """Return the row of eth0, and keep the events."""
        self.clock.advance(1)
        reading = self._home.run(self._source.read, self.clock.now_ns() + self.ahead_ns, ())
        self.times_ns = reading.tables["events"]["ts_ns"].to_pylist()
        self.events = [(event["kind"], event["message"]) for event in reading.tables["events"].to_pylist()]
        rows: list[dict[str, Any]] = reading.tables["nic_counters"].to_pylist()
        self.row = next((row for row in rows if row["nic"] == "eth0"), {})
        self.extra = dict(self.row.get("extra", ()))
        return self.row

    @property
    def changes(self) -> LinkChanges:
        kernel = self._source._kernel
        assert kernel
        assert kernel._changes
        return kernel._changes

    def has_seen(self, count: int) -> bool:
        return self.changes.waiting >= count

    def kinds(self) -> list[str]:
        self.read()
        return [kind for kind, _ in self.events]

    def retrans(self) -> int:
        return int(self.read()["retrans"])

    def close(self) -> None:
        self._home.run(self._source.close)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """For all tests that leave it as it was."""
    with joined_namespaces() as pair:
        yield pair


@pytest.fixture
def watcher(pair: Pair) -> Iterator[Watcher]:
    with closing(Watcher(pair)) as watcher:
        yield watcher


@contextmanager
def watched_pair() -> Iterator[tuple[Pair, Watcher]]:
    """For a test that does not leave it as it was."""
    with joined_namespaces() as pair, closing(Watcher(pair)) as watcher:
        yield pair, watcher


def test_nic_is_read_with_speed_counters_and_carriers(pair: Pair, watcher: Watcher) -> None:
    before = watcher.read()
    assert (before["nic"], before["up"], before["speed_mbps"], before["retrans"]) == ("eth0", True, 10_000, 0)
    with closing(Flow(pair)) as flow:
        flow.send(1_000_000)
        after = watcher.read()
    assert after["tx_bytes"] - before["tx_bytes"] > 1_000_000
    assert after["rx_bytes"] > before["rx_bytes"]
    assert watcher.extra["tx_packets"] > 0
    assert watcher.extra["carrier_ups"] >= 1
    assert (watcher.extra["tcp_flows"], watcher.extra["tcp_rtt_max_lport"]) == (1, flow.sender_port)
    assert watcher.extra["tcp_rtt_max_us"] >= watcher.extra["tcp_rtt_floor_us"] > 0


def test_interface_without_a_device_is_a_nic_only_where_the_topology_names_it(pair: Pair) -> None:
    with closing(LinksSource("h0", NOWHERE, ("eth0", "eth7"), open_kernel=KernelLinks)) as source:
        rows = pair.here.run(source.read, T0, ()).tables["nic_counters"]
    assert rows["nic"].to_pylist() == ["eth0"]
    unnamed = LinksSource("h0", NOWHERE, open_kernel=KernelLinks)
    with closing(unnamed), pytest.raises(NotPresent, match="no NIC with a device"):
        pair.here.run(unnamed.read, T0, ())


def test_carrier_lost_and_found_between_two_readings_is_reported_has_its_speed_asked_and_may_flap(
    pair: Pair, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((10_001, 10_002, 10_003))
    monkeypatch.setattr(KernelLinks, "_ask_speed", lambda *_: next(answers))
    assert [watcher.read()["speed_mbps"] for _ in range(2)] == [10_000, 10_000]
    kinds = []
    for speed in (10_001, 10_002, 10_003):
        blink(pair)
        kinds.append(watcher.kinds())
        assert (watcher.row["up"], watcher.row["speed_mbps"]) == (True, speed), "it is asked once for each carrier"
        assert watcher.kinds() == []
        assert watcher.row["speed_mbps"] == speed
    assert kinds == [["link_down", "link_up"]] * 2 + [["link_down", "link_up", "link_flapping"]]


def blink(pair: Pair) -> None:
    """Let the carrier go and come again."""
    pair.there.set_link("eth0", "down")
    pair.there.set_link("eth0", "up")
    pair.here.wait_until_up("eth0")


def test_event_has_the_time_of_the_change_unless_that_time_is_already_complete(pair: Pair, watcher: Watcher) -> None:
    times_ns = []
    for state in ("down", "up"):
        known = watcher.changes.waiting
        watcher.clock.advance(0.1)
        times_ns.append(watcher.clock.now_ns())
        pair.there.set_link("eth0", state)
        eventually(partial(watcher.has_seen, known + 1))
    assert watcher.kinds() == ["link_down", "link_up"]
    assert watcher.times_ns == times_ns
    pair.here.wait_until_up("eth0")
    # What comes late is not reported for a time already complete.
    watcher.ahead_ns = 10 * SECOND
    watcher.read()
    read_ns = watcher.clock.now_ns() + watcher.ahead_ns
    pair.there.set_link("eth0", "down")
    eventually(partial(watcher.has_seen, 1))
    assert watcher.kinds() == ["link_down"]
    assert watcher.times_ns == [read_ns]
    pair.there.set_link("eth0", "up")
    pair.here.wait_until_up("eth0")


def test_listener_that_fails_is_reported_and_opened_again_and_ends_with_the_source(
    pair: Pair, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = watcher.changes
    with monkeypatch.context() as broken, capture_logs() as lines:
        broken.setattr(failing._socket, "notices", Mock(side_effect=OSError(5, "Input/output error")))
        pair.there.set_link("eth0", "down")
        failing._thread.join(LIMIT_S)
        assert watcher.kinds() == []
    assert [line["error"] for line in lines] == ["Input/output error"]
    assert watcher.kinds() == ["link_down"]
    assert watcher.changes is not failing
    pair.there.set_link("eth0", "up")
    pair.here.wait_until_up("eth0")
    changes = watcher.changes
    watcher.close()
    assert not changes._thread.is_alive(), "the subscription ends with the source"
    changes.close()  # once more does no harm


def test_nic_that_goes_down_is_taken_down_or_removed_is_reported_once_and_others_are_not() -> None:
    with watched_pair() as (pair, watcher):
        pair.here.set_link("lo", "down")
        assert watcher.kinds() == []
        pair.there.set_link("eth0", "down")
        assert watcher.kinds() == ["link_down"]
        assert (watcher.row["up"], watcher.row["speed_mbps"]) == (False, None)
        assert watcher.kinds() == []
        pair.there.set_link("eth0", "up")
        pair.here.wait_until_up("eth0")
        assert watcher.kinds() == ["link_up"]
        pair.here.set_link("eth0", "down")
        watcher.read()
        assert watcher.events == [("link_down", "eth0 went down: it was taken down on this host")]
        pair.here.remove_link("eth0")
        assert [watcher.kinds(), watcher.kinds()] == [["nic_gone"], []]
        join(pair.here, pair.there)
        assert watcher.kinds() == ["link_up"]


def test_segments_lost_in_a_queue_are_sent_again_and_counted_also_after_the_flow_s_end() -> None:
    with watched_pair() as (pair, watcher):
        pair.here.limit("eth0", rate="20mbit", queue_bytes=15_000)
        with closing(Flow(pair)) as flow:
            flow.send(500_000)
            first = watcher.retrans()
            assert watcher.extra["tcp_retrans_max"] == first > 0
            assert watcher.extra["tcp_retrans_max_lport"] == flow.sender_port
        eventually(lambda: watcher.retrans() >= first and watcher.extra["tcp_flows"] == 0)
        ended = watcher.retrans()
        with closing(Flow(pair, "fd00:9::2")) as flow:
            flow.send(500_000)
            second = watcher.retrans()
        assert ended < second <= watcher.retrans()


def test_kernel_that_does_not_say_what_a_nic_is_and_has_no_ethtool_is_helped_by_files(
    pair: Pair, tmp_path: Path
) -> None:
    imitate_nic(tmp_path, "eth0", speed="25000")  # the kernel says of a veth what older ones say of every card

    def without_ethtool(net: Path, clock: Clock) -> KernelLinks:
        kernel = KernelLinks(net, clock)
        kernel._ethtool = None
        return kernel

    with closing(LinksSource("h0", tmp_path, open_kernel=without_ethtool)) as source:
        (row,) = pair.here.run(source.read, T0, ()).tables["nic_counters"].to_pylist()
    assert (row["nic"], row["speed_mbps"]) == ("eth0", 25_000)
    assert row["rx_bytes"] < 2**64 - 1  # which the file says
