"""What faults that really happened cost under each policy: GPU-hours lost, availability, how many spares it takes.

The histories are other people's (see recovery_policies); which nodes a job gets is drawn by seed, and the
intervals are those of the mean over seeds (95 %, bootstrap). They say how much placement matters, and nothing about
other histories: there is one of each kind. What is saved is work that gets done on the same nodes, spares included.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil

import numpy as np

from benchmarks.figures import Figure, Note
from benchmarks.recovery_policies import (
    DATA,
    FLEET,
    FLEET_RECOVERY,
    SPOT_JOB,
    SPOT_RECOVERY,
    Effect,
    History,
    PipelineJob,
    Planned,
    Policy,
    Rerouting,
    Spares,
    has_histories,
    read_servers,
    read_spot,
)
from planner.allocation.cluster import Recovery

GPUS = 8  # of a node
_S_PER_H = 3600.0
MakePolicy = Callable[[Sequence[PipelineJob], Sequence[str], Recovery], Policy]


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
    history: History, jobs: Sequence[PipelineJob], nodes: Sequence[str], recovery: Recovery, make: MakePolicy
) -> Ledger:
    """Return what a policy makes of a history; of `nodes` the first are the jobs', in their order, the rest spare."""
    mine = history.among(nodes)
    policy, up, tally = make(jobs, nodes, recovery), set(mine.up), _Tally(jobs)
    tally.take(0.0, policy.react(0.0, up))
    for hour, changes in mine.timestamps():
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
        for index, effect in enumerate(effects):
            self._work[index] = effect.work
            until = hour + effect.pause_s / _S_PER_H
            self._paused_until[index] = max(self._paused_until[index], until)

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


_FIRST_SEED = 2000
_MANY_SEEDS, _FEW_SEEDS = 20, 5  # a plan after each of some 500 changes takes a while, the other policies do not
_SPARES = (0, 4, 16)
_MOST_SPARES = 80  # 400 servers, of which jobs ask for 320
_ENOUGH = 0.99
_RESAMPLES = 2_000
_QUICK_SHARE = 0.25  # of the history
_WITHOUT_REROUTING = replace(FLEET_RECOVERY, recycle_s=None)
_RESTARTS_ONLY = replace(FLEET_RECOVERY, peer_s=None, drop_s=None, recycle_s=None)


@dataclass(frozen=True, eq=False)
class Option:
    """A policy as it is replayed."""

    name: str
    make: MakePolicy
    recovery: Recovery = FLEET_RECOVERY
    is_slow: bool = False
    jobs: tuple[PipelineJob, ...] = FLEET
    spares: tuple[int, ...] = _SPARES


WAITING = Option("restart only, wait for the node", Spares, spares=(0,))
SPARES = Option("fixed spares", Spares, spares=_SPARES[1:])
REROUTING = Option("re-route", Rerouting)
PLANNED = Option("reconfigure at once", Planned, _WITHOUT_REROUTING, True)
COSTLY = Option("reconfigure at once, each change a restart", Planned, _RESTARTS_ONLY, True, spares=(0,))
ALL_OPTIONS = Option("whatever is best, re-routing too", Planned, FLEET_RECOVERY, True)
# Re-routing lives on the bubbles of a pipeline: with four times the micro-batches there is a quarter of them.
_LONG = tuple(replace(job, micro_batches=4 * job.micro_batches) for job in FLEET)
FEW_BUBBLES = Option("re-route, four times the micro-batches", Rerouting, jobs=_LONG, spares=(0,))
_ALL = (WAITING, SPARES, REROUTING, FEW_BUBBLES, PLANNED, COSTLY, ALL_OPTIONS)


def measure_replay(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of both histories; none without the data."""
    if not has_histories():
        note(f"real fault histories are left out: set {DATA} to the folder of third-party data")
        return ()
    servers = Servers(shorten(read_servers(), _QUICK_SHARE) if quick else read_servers(), quick, note)
    return (*servers.claim(), *servers.list_policies(), *servers.count_spares(), *measure_spot(note))


class Servers:
    """Replays of the servers' history; each is made once."""

    def __init__(self, history: History, quick: bool, note: Note) -> None:
        self._history, self._quick, self._note = history, quick, note
        self._ledgers = cache(self._replay)

    def claim(self) -> Iterator[Figure]:
        """Yield what is saved, in GPU-hours over the whole history."""
        yield self._saved("restart only", PLANNED, WAITING, 0)
        for spares in self._spares()[1:]:
            yield self._saved(f"{spares} fixed spares", PLANNED, SPARES, spares)

    def list_policies(self) -> Iterator[Figure]:
        """Yield the work that each policy gets done, over that without faults."""
        for option in _ALL:
            yield from (self._describe(option, spares) for spares in option.spares if spares in self._spares())

    def count_spares(self) -> Iterator[Figure]:
        """Yield how many spares it takes until 99 % of the work is done."""
        for option in (SPARES, REROUTING):
            enough = find_least(partial(self._is_enough, option), _MOST_SPARES)
            yield self._spares_figure(
                option,
                _MOST_SPARES + 1 if enough is None else enough,
                "found by halving, more taken to be never worse",
            )
        for option in (PLANNED, ALL_OPTIONS):
            tried = [spares for spares in self._spares() if self._is_enough(option, spares)]
            yield self._spares_figure(option, min(tried, default=_MOST_SPARES + 1), f"of {self._spares()} tried")

    def _spares_figure(self, option: Option, spares: int, how: str) -> Figure:
        beside = f"{how}; for {sum(job.nodes for job in FLEET)} nodes; {_MOST_SPARES + 1} means more than there are"
        return Figure(f"spares for 99 % of the work: {option.name}", spares, "nodes", reference=beside)

    def _describe(self, option: Option, spares: int) -> Figure:
        ledgers = self._ledgers(option, spares)
        low, high = bootstrap([one.goodput for one in ledgers])
        lost = np.mean([one.lost_gpu_hours for one in ledgers])
        beside = (
            f"95 % {low:.4f} to {high:.4f} of {len(ledgers)} placements; "
            f"jobs at work {np.mean([one.availability for one in ledgers]):.4f} of the time; "
            f"{lost:,.0f} GPU-hours lost, {lost + spares * self._history.hours * GPUS:,.0f} with those of the spares"
        )
        name = f"{self._history.name}, {spares} spares: {option.name}"
        return Figure(name, self._goodput(option, spares), "of the work", reference=beside)

    def _saved(self, against: str, ours: Option, theirs: Option, spares: int) -> Figure:
        pairs = zip(self._ledgers(ours, spares), self._ledgers(theirs, spares), strict=False)  # the same placements
        saved = np.array([other.lost_gpu_hours - mine.lost_gpu_hours for mine, other in pairs])
        low, high = bootstrap(saved.tolist())
        asked = sum(job.nodes for job in FLEET) * self._history.hours * GPUS
        beside = (
            f"95 % {low:,.0f} to {high:,.0f} of {len(saved)} placements; {saved.mean() / asked:.1%} of the "
            f"{asked:,.0f} that jobs ask for in {self._history.hours / 24:.0f} days"
        )
        name = f"{self._history.name}, {spares} spares: saved against {against}"
        return Figure(name, float(saved.mean()), "GPU-hours", 0.0, None, True, beside)

    def _is_enough(self, option: Option, spares: int) -> bool:
        return self._goodput(option, spares) >= _ENOUGH

    def _goodput(self, option: Option, spares: int) -> float:
        return float(np.mean([one.goodput for one in self._ledgers(option, spares)]))

    def _replay(self, option: Option, spares: int) -> tuple[Ledger, ...]:
        self._note(f"replaying {self._history.name}: {option.name}, {spares} spares")
        seeds = 2 if self._quick else _FEW_SEEDS if option.is_slow else _MANY_SEEDS
        return tuple(
            replay(
                self._history,
                option.jobs,
                draw_nodes(self._history, _FIRST_SEED + seed, spares),
                option.recovery,
                option.make,
            )
            for seed in range(seeds)
        )

    def _spares(self) -> tuple[int, ...]:
        return _SPARES[:2] if self._quick else _SPARES


def measure_spot(note: Note) -> Iterator[Figure]:
    """Yield what one job makes of spot instances, over what could be made of them without any pause."""
    note("replaying spot instances")
    history = read_spot()
    nodes = [*history.up, *sorted({one.node for one in history.changes} - set(history.up))]
    free = Recovery(restart_s=0, lost_work_s=0, save_s=0, peer_s=0, drop_s=0, recycle_s=0)
    limit = replay(history, (SPOT_JOB,), nodes, free, Planned).useful
    size, fixed = max(
        ((d, _fixed_size(history, nodes, d)) for d in range(1, SPOT_JOB.pipelines + 1)), key=lambda x: x[1]
    )
    planned = replace(SPOT_RECOVERY, recycle_s=None)
    results = {
        f"fixed size, the best of all ({size * SPOT_JOB.stages} nodes)": fixed,
        REROUTING.name: replay(history, (SPOT_JOB,), nodes, SPOT_RECOVERY, Rerouting).useful,
        PLANNED.name: replay(history, (SPOT_JOB,), nodes, planned, Planned).useful,
        ALL_OPTIONS.name: replay(history, (SPOT_JOB,), nodes, SPOT_RECOVERY, Planned).useful,
    }
    for name, useful in results.items():
        beside = f"{useful:.1f} of {limit:.1f} node-hours in {history.hours:.1f} hours; one history, no chance in it"
        yield Figure(f"{history.name}: {name}", useful / limit, "of the limit", reference=beside)


def _fixed_size(history: History, nodes: Sequence[str], pipelines: int) -> float:
    """Return the work of a job of so many pipelines that starts again whenever it loses a node and can replace it."""
    batch = SPOT_JOB.micro_batches * SPOT_JOB.pipelines
    job = PipelineJob("fixed", SPOT_JOB.stages, pipelines, ceil(batch / pipelines))
    ledger = replay(history, (job,), nodes, SPOT_RECOVERY, Spares)
    return ledger.running / job.nodes * SPOT_JOB.work(pipelines)


def draw_nodes(history: History, seed: int, spares: int) -> list[str]:
    """Return nodes for all jobs and so many spares; the jobs' nodes are the same for any number of spares."""
    nodes = sorted(history.up)
    random.Random(seed).shuffle(nodes)  # noqa: S311  # placement, not a secret
    return nodes[: sum(job.nodes for job in FLEET) + spares]


def shorten(history: History, share: float) -> History:
    """Return the beginning of a history."""
    hours = history.hours * share
    return History(history.name, hours, history.up, tuple(one for one in history.changes if one.hour < hours))


def find_least(is_enough: Callable[[int], bool], most: int) -> int | None:
    """Return the least number that is enough, if more is never worse; None when even the most is not.

    >>> find_least(lambda spares: spares >= 7, 80)
    7
    """
    least = bisect_left(range(most + 1), True, key=is_enough)
    return least if least <= most else None


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by drawing as many values again and again."""
    generator = np.random.default_rng(_FIRST_SEED)
    drawn = generator.choice(np.asarray(values), (_RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)
