"""One run of a fleet: senders prepared and started together, the head node watched until the last receipt."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.figures import Note
from benchmarks.fleet_head import Head, Sample, Watch
from benchmarks.fleet_sender import BATCH_SECONDS, Order, Sent, play
from lockstep.clock import NS_PER_S
from lockstep.errors import LockstepError

_SENDERS = 2
_LEAD_S = 0.5  # from the word to the first batch
_STOP_S = 60.0
_NOTE_S = 5.0


@dataclass(frozen=True)
class RunPlan:
    """Which agents, how long, and from when on it counts."""

    hosts: range
    first_second: int  # that the rows of the first batch carry; runs in one store must not overlap
    seconds: int
    warm_up_s: int = 0
    grace_s: float = 15.0  # for receipts that come after the last batch was due


@dataclass(frozen=True)
class RunOutcome:
    """What was sent, and what the head node looked like meanwhile."""

    plan: RunPlan
    start_ns: int
    sent: tuple[Sent, ...]
    samples: tuple[Sample, ...]
    sighted: dict[tuple[int, int], int]  # host and second of its rows -> when a query first found them


def run_fleet(
    head: Head, tokens: dict[int, str], plan: RunPlan, note: Note, during: Callable[[], object] = lambda: None
) -> RunOutcome:
    """Play the plan and return what happened; `during` runs beside it, from the first batch on."""
    with ExitStack() as stack:
        senders = [stack.enter_context(_Sender(order)) for order in _orders(head, tokens, plan)]
        _await_ready(senders, note, len(plan.hosts))
        start_ns = time.monotonic_ns() + int(_LEAD_S * NS_PER_S)
        watch = stack.enter_context(Watch(head, [sender.pid for sender in senders], plan.hosts, plan.first_second))
        for sender in senders:
            sender.start(start_ns)
        during()
        sent = [one for sender in senders for one in sender.finish(plan)]
        watch.wait_for_markers(plan.first_second + plan.seconds)
    return RunOutcome(plan, start_ns, tuple(sent), tuple(watch.samples), watch.sighted)


class _Sender:
    """A process that plays agents; it is told when to start, and is gone with the block."""

    def __init__(self, order: Order) -> None:
        spawning = get_context("spawn")
        self._talk, theirs = spawning.Pipe()
        self._process = spawning.Process(target=play, args=(order, theirs), daemon=True)
        self._process.start()
        theirs.close()  # else we would not see that it has ended
        self.pid = self._process.pid or 0
        self.encoded, self._is_ready = 0, False

    def is_ready(self, within_s: float) -> bool:
        """Return whether it can start, having waited for that for some time at most."""
        until_s = time.monotonic() + within_s
        while not self._is_ready and self._talk.poll(max(until_s - time.monotonic(), 0.0)):
            self.encoded, self._is_ready = self._receive()
        return self._is_ready

    def start(self, start_ns: int) -> None:
        self._talk.send(start_ns)

    def finish(self, plan: RunPlan) -> list[Sent]:
        """Return what became of its batches, once it has ended."""
        if not self._talk.poll(plan.seconds + plan.grace_s + _STOP_S):
            raise LockstepError("a sender of the fleet does not end")
        sent: list[Sent] = self._receive()
        return sent

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._talk.close()
        self._process.kill()
        self._process.join()

    def _receive(self) -> Any:  # Any: whatever it says
        try:
            return self._talk.recv()
        except EOFError:
            raise LockstepError("a sender of the fleet has ended too early") from None


def _orders(head: Head, tokens: dict[int, str], plan: RunPlan) -> Iterator[Order]:
    for number in range(min(_SENDERS, len(plan.hosts))):
        yield Order(
            port=head.port,
            boot=uuid.uuid4().hex,
            tokens={host: tokens[host] for host in plan.hosts[number::_SENDERS]},
            first_second=plan.first_second,
            seconds=plan.seconds,
            grace_s=plan.grace_s,
        )


def _await_ready(senders: list[_Sender], note: Note, agents: int) -> None:
    """Wait for the encoding, which is the longest silence of a run, and say how far it is."""
    for sender in senders:
        while not sender.is_ready(_NOTE_S):
            note(f"  encoded the batches of {sum(one.encoded for one in senders):,} of {agents:,} agents")


MAX_ACK_S = float(BATCH_SECONDS)  # an agent sends one batch at a time: a slower receipt makes it fall behind
MAX_LATE_S = 1.0
MAX_GROWTH = 0.05  # of what comes in: what a run of seconds cannot tell from the sawtooth of a segment a second


@dataclass(frozen=True)
class Quantiles:
    """Median and tail in seconds; infinite where a batch was never taken or found."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Cores:
    """CPU seconds per second of each part."""

    gateway: float
    store: float
    senders: float
    others: float  # everything else on this machine

    @property
    def head(self) -> float:
        return self.gateway + self.store


@dataclass(frozen=True)
class Judgement:
    """One run in figures; `trouble` is empty when the load is sustained, else the reasons why it is not."""

    agents: int
    rows_per_s: float
    bytes_per_s: float  # on the wire
    ack: Quantiles
    late: Quantiles
    delay: Quantiles  # from sent to found by a query
    backlog_growth: float  # bytes the backlog grew by, per byte that came in
    cores: Cores
    trouble: tuple[str, ...]

    @property
    def is_sustained(self) -> bool:
        return not self.trouble


def judge(outcome: RunOutcome) -> Judgement:
    """Judge the run after its warm-up.

    Sustained means: every batch that was due got its receipt, p99 of the receipts within a second, agents no more
    than a second late with sending (p99), and the backlog in the gateway's log does not grow (least squares over the
    whole time, below 5 % of what came in).
    """
    plan = outcome.plan
    begin_ns, end_ns = (outcome.start_ns + second * NS_PER_S for second in (plan.warm_up_s, plan.seconds))
    counted = [one for one in outcome.sent if one.due_ns >= begin_ns]
    samples = [sample for sample in outcome.samples if begin_ns <= sample.at_ns <= end_ns]
    wall_s = (end_ns - begin_ns) / NS_PER_S
    taken = [one for one in counted if begin_ns <= one.acked_ns <= end_ns]
    bytes_per_s = sum(one.bytes for one in taken) / wall_s
    ack = quantiles([(one.acked_ns - one.sent_ns) / NS_PER_S if one.acked_ns else np.inf for one in counted])
    late = quantiles([(one.sent_ns - one.due_ns) / NS_PER_S for one in counted])
    growth = growth_per_s(samples) / bytes_per_s if bytes_per_s else np.inf
    return Judgement(
        len(plan.hosts),
        sum(one.rows for one in taken) / wall_s,
        bytes_per_s,
        ack,
        late,
        quantiles(delays_s(outcome, counted)),
        growth,
        cores_of(samples),
        tuple(_complaints(counted, ack, late, growth)),
    )


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return median and 99th percentile, of nothing infinite.

    >>> quantiles([1.0, 2.0, 3.0])
    Quantiles(p50_s=2.0, p99_s=3.0)
    """
    if not values:
        return Quantiles(np.inf, np.inf)
    p50, p99 = np.quantile(values, [0.5, 0.99], method="higher")
    return Quantiles(float(p50), float(p99))


def delays_s(outcome: RunOutcome, counted: Sequence[Sent]) -> list[float]:
    """Return how long each batch of a marked host took from its first sending until a query found its last second."""
    marked = {host for host, _ in outcome.sighted}
    before = outcome.plan.first_second - 1
    found = ((one, outcome.sighted.get((one.host, before + one.number * BATCH_SECONDS))) for one in counted)
    return [(at - one.sent_ns) / NS_PER_S if at else np.inf for one, at in found if one.host in marked]


def growth_per_s(samples: Sequence[Sample]) -> float:
    """Return the slope of the backlog in bytes a second."""
    if len(samples) < 2:
        return 0.0
    at_s = np.array([sample.at_ns / NS_PER_S for sample in samples])
    return float(np.polyfit(at_s - at_s[0], [sample.backlog_bytes for sample in samples], 1)[0])


def cores_of(samples: Sequence[Sample]) -> Cores:
    """Return what each part used between the first and the last look."""
    if len(samples) < 2:
        return Cores(0.0, 0.0, 0.0, 0.0)
    first, last = samples[0], samples[-1]
    wall_s = (last.at_ns - first.at_ns) / NS_PER_S
    gateway = (last.gateway_cpu_s - first.gateway_cpu_s) / wall_s
    store = ((last.store_cpu_s or 0.0) - (first.store_cpu_s or 0.0)) / wall_s
    senders = (last.senders_cpu_s - first.senders_cpu_s) / wall_s
    machine = (last.machine_cpu_s - first.machine_cpu_s) / wall_s
    return Cores(gateway, store, senders, max(0.0, machine - gateway - store - senders))


def _complaints(counted: Sequence[Sent], ack: Quantiles, late: Quantiles, growth: float) -> list[str]:
    untaken = sum(not one.acked_ns for one in counted)
    repeated = sum(one.tries > 1 for one in counted)
    found = [
        (untaken > 0, f"{untaken:,} batches were never taken"),
        (repeated > 0, f"{repeated:,} batches were sent more than once"),
        (ack.p99_s > MAX_ACK_S, f"receipts took {ack.p99_s:.1f} s (p99)"),
        (late.p99_s > MAX_LATE_S, f"agents sent {late.p99_s:.1f} s late (p99)"),
        (growth > MAX_GROWTH, f"the backlog grew by {100 * growth:.0f} % of what came in"),
    ]
    return [reason for holds, reason in found if holds]
