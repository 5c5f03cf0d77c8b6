"""The store away for a while under load: how much waits, how long it takes to drain, and what agents notice of it."""

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Note
from benchmarks.fleet_head import Head, wait_until
from benchmarks.fleet_judgement import Quantiles, quantiles
from benchmarks.fleet_run import RunOutcome, RunPlan, run_fleet
from lockstep.clock import NS_PER_S

_CALM = 1.5  # times the largest backlog before the outage: what counts as drained
_DRAIN_LIMIT_S = 180.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Outage:
    """How long the store is away, and how long agents send before and after it."""

    before_s: int
    away_s: int
    after_s: int

    @property
    def seconds(self) -> int:
        return self.before_s + self.away_s + self.after_s


@dataclass(frozen=True)
class OutageOutcome:
    """What an outage did; `drain_s` is from the store's return until no more waits than before, or infinite."""

    run: RunOutcome
    peak_bytes: int
    drain_s: float
    is_drained_under_load: bool  # while agents still sent
    ack: Quantiles  # of what was sent while the store was away


def play_outage(
    head: Head, tokens: dict[int, str], plan: RunPlan, outage: Outage, directory: Path, note: Note
) -> OutageOutcome:
    """Kill the store in the middle of a run and start it again."""
    strike = _Strike(head, outage, note)
    run = run_fleet(head, tokens, plan, directory, note, during=strike.play)
    away = [one for one in run.sent if strike.killed_ns <= one.sent_ns < strike.back_ns]
    ack = quantiles([(one.acked_ns - one.sent_ns) / NS_PER_S if one.acked_ns else float("inf") for one in away])
    peak = max((moment.backlog_bytes for moment in run.moments), default=0)
    last_ns = max((one.sent_ns for one in run.sent), default=0)
    return OutageOutcome(run, peak, strike.drain_s, strike.back_ns + strike.drain_s * NS_PER_S <= last_ns, ack)


class _Strike:
    """What happens to the store while agents send."""

    def __init__(self, head: Head, outage: Outage, note: Note) -> None:
        self._head, self._outage, self._note = head, outage, note
        self.killed_ns = self.back_ns = 0
        self.drain_s = float("inf")

    def play(self) -> None:
        calm = self._largest_backlog(self._outage.before_s)
        self._note(f"  killing the store for {self._outage.away_s} s")
        self.killed_ns = time.monotonic_ns()
        self._head.kill_store()
        time.sleep(self._outage.away_s)
        self._head.start_store()
        self.back_ns = time.monotonic_ns()
        self._note(f"  the store is back, {self._head.backlog_bytes / 1e6:,.0f} MB wait for it")
        if wait_until(lambda: self._head.backlog_bytes <= _CALM * calm, _DRAIN_LIMIT_S):
            self.drain_s = (time.monotonic_ns() - self.back_ns) / NS_PER_S
            self._note(f"  drained after {self.drain_s:.1f} s")

    def _largest_backlog(self, seconds: float) -> int:
        """Look on and return the most that waited: the backlog is a sawtooth, a segment a second."""
        end, largest = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            largest = max(largest, self._head.backlog_bytes)
            time.sleep(_LOOK_S)
        return largest
