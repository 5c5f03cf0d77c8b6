"""One replay: a policy lives through a history, and what it makes of it is added up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.recovery_replay_history import History
from benchmarks.recovery_replay_jobs import PipelineJob
from benchmarks.recovery_replay_policies import Effect, Policy
from planner.recovery.allocation.jobs import Ways

GPUS = 8  # of a node
_S_PER_H = 3600.0
MakePolicy = Callable[[Sequence[PipelineJob], Sequence[str], Ways], Policy]


@dataclass(frozen=True)
class Ledger:
    """What came of a replay, in node-hours."""

    asked: float  # what the jobs would have used without faults
    useful: float  # what they got, in the work of that many nodes
    running: float  # of `asked`, the time in which their job did any work

    @property
    def goodput(self) -> float:
        """Return the work done over that without faults."""
        return self.useful / self.asked

    @property
    def availability(self) -> float:
        """Return the share of time in which jobs did work, each counted by its size."""
        return self.running / self.asked

    @property
    def lost_gpu_hours(self) -> float:
        """Return what the jobs missed."""
        return (self.asked - self.useful) * GPUS


def replay(
    history: History, jobs: Sequence[PipelineJob], nodes: Sequence[str], ways: Ways, make: MakePolicy
) -> Ledger:
    """Return what a policy makes of a history; of `nodes` the first are the jobs', in their order, the rest spare."""
    mine = history.among(nodes)
    policy, up, tally = make(jobs, nodes, ways), set(mine.up), _Tally(jobs)
    tally.take(0.0, policy.react(0.0, up))
    for hour, changes in mine.moments():
        for change in changes:
            (up.add if change.is_up else up.discard)(change.node)
        tally.take(hour, policy.react(hour, up))
    return tally.close(mine.hours)


class _Tally:
    """Adds up from change to change."""

    def __init__(self, jobs: Sequence[PipelineJob]) -> None:
        self._jobs = jobs
        self._hour = 0.0
        self._work, self._paused_until = [0.0] * len(jobs), [0.0] * len(jobs)
        self._useful, self._running = 0.0, 0.0

    def take(self, hour: float, effects: Sequence[Effect]) -> None:
        """Add what happened until now, and note what holds from now on."""
        self._add_until(hour)
        for place, effect in enumerate(effects):
            self._work[place] = effect.work
            until = hour + effect.pause_s / _S_PER_H
            self._paused_until[place] = max(self._paused_until[place], until)

    def close(self, hour: float) -> Ledger:
        """Return the sums at the end."""
        self._add_until(hour)
        asked = sum(job.nodes for job in self._jobs) * hour
        return Ledger(asked, self._useful, self._running)

    def _add_until(self, hour: float) -> None:
        for job, work, paused in zip(self._jobs, self._work, self._paused_until, strict=True):
            hours = max(0.0, hour - max(self._hour, paused))
            self._useful += work * hours
            self._running += job.nodes * hours * (work > 0)
        self._hour = hour
