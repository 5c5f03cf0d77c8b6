"""What a run of the fleet amounts to: rates, delays, cores, and whether this load can go on for ever."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fleet_run import RunOutcome
from benchmarks.fleet_sender import Sent
from benchmarks.fleet_watch import Moment
from lockstep.clock import NS_PER_S

MAX_ACK_S = 1.0  # an agent sends once a second and one batch at a time: a slower receipt makes it fall behind
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
    moments = [moment for moment in outcome.moments if begin_ns <= moment.at_ns <= end_ns]
    wall_s = (end_ns - begin_ns) / NS_PER_S
    taken = [one for one in counted if begin_ns <= one.acked_ns <= end_ns]
    bytes_per_s = sum(one.bytes for one in taken) / wall_s
    ack = quantiles([(one.acked_ns - one.sent_ns) / NS_PER_S if one.acked_ns else np.inf for one in counted])
    late = quantiles([(one.sent_ns - one.due_ns) / NS_PER_S for one in counted])
    growth = growth_per_s(moments) / bytes_per_s if bytes_per_s else np.inf
    return Judgement(
        len(plan.hosts),
        sum(one.rows for one in taken) / wall_s,
        bytes_per_s,
        ack,
        late,
        quantiles(delays_s(outcome, counted)),
        growth,
        cores_of(moments),
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
    """Return how long each batch of a marked host took from its first sending until a query found its rows."""
    marked = {host for host, _ in outcome.sighted}
    found = ((one, outcome.sighted.get((one.host, outcome.plan.first_second + one.number - 1))) for one in counted)
    return [(at - one.sent_ns) / NS_PER_S if at else np.inf for one, at in found if one.host in marked]


def growth_per_s(moments: Sequence[Moment]) -> float:
    """Return the slope of the backlog in bytes a second."""
    if len(moments) < 2:
        return 0.0
    at_s = np.array([moment.at_ns / NS_PER_S for moment in moments])
    return float(np.polyfit(at_s - at_s[0], [moment.backlog_bytes for moment in moments], 1)[0])


def cores_of(moments: Sequence[Moment]) -> Cores:
    """Return what each part used between the first and the last look."""
    if len(moments) < 2:
        return Cores(0.0, 0.0, 0.0, 0.0)
    first, last = moments[0], moments[-1]
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
