"""The agent sends everything once, in order and with a heartbeat, whatever its sources and its gateway do."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from collector import agent as agent_module
from collector.agent import CollectorAgent, Follower, Gathering
from collector.shipping import GatewayClient, MemoryQueue
from collector.sources.source import PlainSource, Reading, Source
from collector.spool import Spool
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import NotPresent
from lockstep.records import Event
from tests.builders import SECOND, T0, make, rows
from tests.collector.fake_gateway import Answer, FakeGateway
from tests.testbed.tcp_proxy import TcpProxy
from tests.waiting import HastyClock, eventually

FAR_NS = 2**62
PLENTY = 1 << 20
AGES_S = 1e6  # on a hasty clock too


class StandingClock(HastyClock):
    """A clock on which waiting takes as long as on a hasty one, and no time passes but what is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self._monotonic_ns = 0

    def skip(self, seconds: float) -> None:
        self._monotonic_ns += round(seconds * NS_PER_S)

    def monotonic_ns(self) -> int:
        return self._monotonic_ns


class NumberedSource(PlainSource):
    """Gives one event a read, numbered from 0; `before` may raise, block or look around first."""

    period_s = 1.0

    def __init__(
        self, name: str, before: Callable[[int], None] = lambda number: None, is_urgent: bool = False
    ) -> None:
        self.name, self._before, self._is_urgent = name, before, is_urgent
        self.reads = 0
        self.requests: Sequence[DetailRequest] = ()

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        number, self.reads = self.reads, self.reads + 1
        self.requests = requests
        self._before(number)
        event = make(Event, source=self.name, message=str(number), ts_ns=now_ns)
        return Reading({"events": rows(event)}, watermark_ns=now_ns, is_urgent=self._is_urgent)


class Confused(NumberedSource):
    """Gives rows of a wrong kind, which must not spoil the batch."""

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        self.reads += 1
        return Reading({("events", "no_such_table")[self.reads % 2]: pa.table({"x": [1]})}, watermark_ns=now_ns)


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the end wait for every source that is read at the moment: 5 s of a hasty clock are 50 ms."""
    monkeypatch.setattr(agent_module, "_LAST_READ_S", AGES_S)


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as serving:
        yield serving


@contextmanager
def running(
    *sources: Source,
    server: str,
    buffer_bytes: int = PLENTY,
    clock: HastyClock | None = None,
    checkpoints: Mapping[str, bytes] | None = None,
) -> Iterator[CollectorAgent]:
    destination, queue = GatewayClient(server, "token", "h0"), MemoryQueue(buffer_bytes)
    agent = CollectorAgent("h0", sources, queue, destination, clock or HastyClock(), checkpoints or {})
    agent.start()
    try:
        yield agent
    finally:
        agent.close()


def reported_by(source: NumberedSource, gateway: FakeGateway) -> list[int]:
    """Return the numbers of the events of a source that arrived, in the order they came."""
    events = zip(gateway.all_of("events", "source"), gateway.all_of("events", "message"), strict=True)
    return [int(message) for name, message in events if name == source.name]


def hang(let_go: threading.Event) -> Callable[[int], None]:
    """Return what hangs at each read until it is let go."""

    def wait(_: int) -> None:
        let_go.wait(60)

    return wait


def fail(error: Exception, times: int = 1 << 30) -> Callable[[int], None]:
    """Return what raises at the first so many reads."""

    def raise_it(number: int) -> None:
        if number < times:
            raise error

    return raise_it


def test_everything_read_arrives_once_in_numbered_batches_with_heartbeats_until_the_end(gateway: FakeGateway) -> None:
    source = NumberedSource("a")
    with running(source, server=gateway.url):
        eventually(lambda: source.reads >= 5 and len(gateway.received) >= 4)
    assert reported_by(source, gateway) == list(range(source.reads)), "the end sends what is left"
    assert gateway.numbers == list(range(1, len(gateway.numbers) + 1))
    assert {batch.agent for batch in gateway.received} == {"h0"}
    assert all(len(batch.column("agents", "host")) == 1 for batch in gateway.received)
    assert set(gateway.all_of("agents", "dropped")) == {0}
    assert set(gateway.all_of("agents", "gateway")) == {f"127.0.0.1:{gateway.port}"}
    assert gateway.all_of("agents", "ended") == [False] * (len(gateway.received) - 1) + [True]
    gateway.received.clear()
    destination = GatewayClient(gateway.url, "token", "h0")
    CollectorAgent("h0", [NumberedSource("a")], MemoryQueue(PLENTY), destination, HastyClock()).close()
    assert (gateway.numbers, gateway.all_of("agents", "host")) == ([1], ["h0"]), "one that never started was there"


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_source_that_stops_giving_is_waited_for_a_while_and_not_for_ever(gateway: FakeGateway, how: str) -> None:
    let_go, clock = threading.Event(), StandingClock()
    stop, began_ns = hang(let_go) if how == "hangs" else fail(OSError("the card does not answer")), clock.now_ns()

    def stop_after_one(number: int) -> None:
        if number:
            stop(number)

    stopping, stuck = NumberedSource("stopping", before=stop_after_one), NumberedSource("stuck", before=stop)
    healthy = NumberedSource("healthy")
    with running(stopping, stuck, healthy, server=gateway.url, clock=clock):
        eventually(lambda: stopping.reads >= 2 and stuck.reads)
        stopped_ns = clock.now_ns()
        clock.skip(9)
        eventually(lambda: clock.now_ns() in gateway.all_of("events", "ts_ns"))
        assert set(gateway.all_of("agents", "watermark_ns")) == {stopped_ns}, "they might come back"
        assert not any(gateway.all_of("agents", "stalled"))
        clock.skip(2)
        eventually(lambda: gateway.all_of("agents", "watermark_ns")[-1] > stopped_ns)
        stalled = [("stopping", stopped_ns), ("stuck", began_ns)]
        assert sorted(gateway.all_of("agents", "stalled")[-1]) == stalled
        let_go.set()


def test_batch_without_a_receipt_is_sent_again_under_its_number_and_one_that_is_never_taken_is_counted(
    gateway: FakeGateway,
) -> None:
    answers: list[Answer] = ["lost", 401, 503, b"<html>please log in</html>"]
    gateway.answers += [*answers, 422, 400]
    with capture_logs() as lines, running(NumberedSource("a"), server=gateway.url):
        eventually(lambda: len(gateway.received) >= 9)
    assert gateway.numbers[:9] == [1, 1, 1, 1, 1, 2, 3, 4, 5]
    assert len({batch.body for batch in gateway.received[:5]}) == 1
    assert len({batch.boot for batch in gateway.received}) == 1
    lost = [table.num_rows for batch in gateway.received[4:6] for table in batch.tables.values()]
    assert gateway.all_of("agents", "dropped")[-1] == sum(lost)
    reasons = [str(line.get("reason", line["event"])).rpartition(": ")[2] for line in lines]
    assert reasons[1::2] == ["told to say no"] * 2, "each trouble is said once"
    assert (len(reasons), reasons[-1]) == (5, "batches are taken again")


def test_full_buffer_drops_the_oldest_and_says_how_many_rows(gateway: FakeGateway) -> None:
    source = NumberedSource("a", is_urgent=True)
    with TcpProxy(gateway.port) as proxy:
        proxy.behaviour = "refuse"
        with running(source, server=f"http://127.0.0.1:{proxy.port}", buffer_bytes=4096) as agent:
            eventually(lambda: agent.dropped_rows > 0)
            proxy.behaviour = "forward"
            eventually(lambda: len(gateway.received) >= 3)
    arrived = reported_by(source, gateway)
    assert gateway.numbers[0] > 1
    assert gateway.all_of("agents", "dropped")[-1] > 0
    assert arrived[0] > 0
    assert arrived[-1] == source.reads - 1


def read_four_times(period_s: float, started_ns: int) -> list[int]:
    """Return when a source is read that takes a fifth of its period: 0.1 s after it can give all about 0.2 s ago."""
    clock, stop, timestamps = ManualClock(started_ns), threading.Event(), list[int]()

    def note(number: int) -> None:
        timestamps.append(clock.now_ns())
        clock.advance(period_s / 5)
        if number == 3:
            stop.set()

    source = NumberedSource("a", before=note)
    source.period_s, source.delay_s = period_s, 0.2
    Follower(source, Gathering({}, clock), tuple, clock, offset_s=0.1).follow(stop)
    return timestamps


@pytest.mark.parametrize("started_s", [0.7, 1.6])
def test_hosts_read_what_windows_wait_for_at_the_same_times(started_s: float) -> None:
    started_ns = round(started_s * SECOND)
    for period_s, first_s in ((2.0, 2.3), (1.0, 1.3 if started_s < 1.3 else 2.3)):
        expected = [started_ns, *(round((first_s + number * period_s) * SECOND) for number in range(3))]
        assert read_four_times(period_s, started_ns) == expected
    for period_s in (0.1, 10.0):  # in haste, or of states that nobody waits for
        expected = [started_ns + round(number * period_s * SECOND) for number in range(4)]
        assert read_four_times(period_s, started_ns) == expected


def test_what_somebody_waits_for_is_packed_at_once(gateway: FakeGateway) -> None:
    class SlowClock(HastyClock):
        """Batches that are not urgent would take minutes."""

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            return event.wait(timeout_s * self.SPEED)

    def wait_for_the_last(number: int) -> None:
        if number <= 5:
            eventually(lambda: len(gateway.received) >= number)

    source = NumberedSource("a", before=wait_for_the_last, is_urgent=True)
    source.period_s = 0
    with running(source, server=gateway.url, clock=SlowClock()):
        eventually(lambda: len(gateway.received) >= 5)
    assert [batch.column("events", "message") for batch in gateway.received[:5]] == [[str(n)] for n in range(5)]


def test_detail_requests_reach_the_sources_until_they_expire_even_when_the_gateway_is_gone(
    gateway: FakeGateway,
) -> None:
    clock, source = HastyClock(), NumberedSource("a")
    ends = {"short": clock.now_ns() + 86_400 * NS_PER_S, "long": FAR_NS}
    short, long = (
        DetailRequest(id=name, host="h0", kind="probe", details={"ranks": [1]}, expires_ns=end_ns)
        for name, end_ns in ends.items()
    )
    with running(source, server=gateway.url, clock=clock):
        for requests in ((short,), (), (short, long)):
            gateway.requests = requests
            eventually(lambda: source.requests == gateway.requests)
        gateway.answers += [503] * 10_000
        clock.skip(86_400)
        eventually(lambda: source.requests == (long,))
        gateway.answers.clear()


ERRORS = {"failing": OSError("gone"), "buggy": KeyError("rx")}


def test_source_that_fails_is_read_again_and_does_not_disturb_the_others(gateway: FakeGateway) -> None:
    failing, buggy = (NumberedSource(name, fail(error)) for name, error in ERRORS.items())
    confused, healthy = Confused("confused"), NumberedSource("healthy")
    with capture_logs() as lines, running(failing, buggy, confused, healthy, server=gateway.url):
        eventually(lambda: min(source.reads for source in (failing, buggy, healthy)) >= 3 and confused.reads >= 4)
    assert reported_by(healthy, gateway) == list(range(healthy.reads))
    assert set(gateway.all_of("events", "source")) == {"healthy"}
    failures = [(line["source"], line["error"]) for line in lines if line["event"] == "source failed"]
    assert [error for source, error in failures if source == "failing"] == ["OSError: gone"]
    assert [error for source, error in failures if source == "buggy"] == ["KeyError: 'rx'"]


@pytest.mark.parametrize("error", [OSError("not yet"), NotPresent("no NIC yet")])
def test_source_that_recovers_or_whose_hardware_comes_later_is_read_then(
    gateway: FakeGateway, error: Exception
) -> None:
    source = NumberedSource("a", before=fail(error, times=2))
    with running(source, server=gateway.url):
        eventually(lambda: source.reads >= 4)
    assert reported_by(source, gateway) == list(range(2, source.reads))


def test_source_that_hangs_delays_neither_the_others_nor_the_end(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_LAST_READ_S", 0.05)
    let_go = threading.Event()
    hanging, healthy = NumberedSource("hanging", before=hang(let_go)), NumberedSource("healthy")
    with running(hanging, healthy, server=gateway.url):
        eventually(lambda: hanging.reads and healthy.reads >= 5)
    reported = reported_by(healthy, gateway)
    assert hanging.reads == 1
    assert reported == list(range(len(reported)))
    assert len(reported) >= 4  # the fifth reading had only begun, and the end does not wait
    let_go.set()


def test_sources_are_closed_at_the_end_also_when_one_refuses(gateway: FakeGateway) -> None:
    sources = NumberedSource("a"), NumberedSource("b")
    closing = [patch.object(source, "close", side_effect=OSError("the socket is stuck")) for source in sources]
    with closing[0] as one, closing[1] as other, running(*sources, server=gateway.url):
        eventually(lambda: all(source.reads for source in sources))
        assert (one.call_count, other.call_count) == (0, 0)
    assert (one.call_count, other.call_count) == (1, 1)


def test_source_with_nothing_more_to_read_here_rests_and_no_longer_holds_the_watermark(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_RETRY_S", AGES_S)

    def vanish(number: int) -> None:
        if number == 1:
            raise NotPresent("the NIC is gone")

    vanishing, healthy = NumberedSource("vanishing", before=vanish), NumberedSource("healthy")
    absent, clock = NumberedSource("absent", before=fail(NotPresent("no NIC"))), StandingClock()
    with capture_logs() as lines, running(vanishing, absent, healthy, server=gateway.url, clock=clock):
        eventually(lambda: vanishing.reads >= 2 and absent.reads)
        gone_ns, reads = clock.now_ns(), healthy.reads
        clock.skip(1)  # far less than a source that fails is waited for
        eventually(lambda: gateway.all_of("agents", "watermark_ns")[-1:] > [gone_ns] and healthy.reads >= reads + 4)
    assert (vanishing.reads, absent.reads) == (2, 1)
    reasons = {line["source"]: line["reason"] for line in lines if "nothing to read" in line["event"]}
    assert reasons == {"vanishing": "the NIC is gone", "absent": "no NIC"}
    assert len([line for line in lines if "nothing to read" in line["event"]]) == 2


class CountingOn(NumberedSource):
    """Goes on counting from its checkpoint."""

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        reading = super().read(now_ns, requests)
        return replace(reading, checkpoint=str(self.reads).encode())

    def resume(self, checkpoint: bytes) -> None:
        self.reads = int(checkpoint)


def has_read(source: NumberedSource, goal: int) -> bool:
    return source.reads >= goal


def test_agent_goes_on_behind_the_last_batch_that_an_earlier_one_kept(gateway: FakeGateway, tmp_path: Path) -> None:
    for refusals in (3, 3, 0):
        gateway.answers += [503] * refusals
        spool, source = Spool(tmp_path, PLENTY, PLENTY), CountingOn("a")
        destination = GatewayClient(gateway.url, "token", "h0")
        agent = CollectorAgent("h0", [source], spool, destination, HastyClock(), spool.checkpoints)
        goal = source.reads + 5
        agent.start()
        eventually(partial(has_read, source, goal))
        if not refusals:
            gateway.answers.clear()  # so that the end sends all that is left
        agent.close()
    receipts = list({(batch.boot, batch.number): batch for batch in gateway.received}.values())
    reported = [int(message) for batch in receipts for message in batch.column("events", "message")]
    assert len(reported) >= 15
    assert reported == list(range(len(reported)))
    assert len({batch.boot for batch in gateway.received}) == 3
    gateway.received.clear()
    source = CountingOn("a")
    with running(source, server=gateway.url, checkpoints={"a": b"from another release"}):
        eventually(lambda: source.reads >= 2)
    assert reported_by(source, gateway)[:2] == [0, 1], "what a source does not understand lets it begin anew"


def test_rows_beyond_the_bound_are_counted_until_somebody_packs_and_who_is_read_seldom_holds_no_watermark_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathering = Gathering({}, ManualClock(T0))
    gathering.put("connections", Reading({}, watermark_ns=T0 - 9 * SECOND), period_s=10.0)
    assert gathering.take().watermark_ns is None
    gathering.put("gpu", Reading({}, watermark_ns=T0 - SECOND), period_s=2.0)
    gathering.put("links", Reading({}, watermark_ns=T0), period_s=1.0)
    assert gathering.take().watermark_ns == T0 - SECOND
    monkeypatch.setattr(agent_module, "MOST_ROWS", 5)
    gathering = Gathering({}, ManualClock(T0))
    reading = Reading({"events": rows(make(Event), make(Event))}, watermark_ns=T0)
    for _ in range(4):
        gathering.put("a", reading, period_s=1.0)
    assert gathering.take().tables["events"].num_rows == 4
    assert gathering.dropped_rows == 4
    gathering.put("a", reading, period_s=1.0)
    assert gathering.take().tables["events"].num_rows == 2
    assert gathering.dropped_rows == 4
