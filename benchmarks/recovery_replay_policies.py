"""What is done when a node goes or comes: four policies, from waiting for the node to a plan over all jobs.

Each is told which nodes are up after a change, and answers for each job how much work it does from now on and how
long it stands still first. None of them sees what comes.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from benchmarks.recovery_replay_jobs import PipelineJob
from planner.recovery.allocation.jobs import Ways


class Effect(NamedTuple):
    """What a change means for one job."""

    work: float  # in nodes, once it runs
    pause_s: float = 0.0


class Policy(Protocol):
    """Reacts to changes; keeps what each job holds."""

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job."""
        ...


class Held:
    """Which nodes each job holds, some of which may be down."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str]) -> None:
        self.jobs, self.nodes = jobs, list[list[str]]()
        begin = 0
        for job in jobs:
            self.nodes.append(list(nodes[begin : begin + job.nodes]))
            begin += job.nodes

    def missing(self, place: int, up: Collection[str]) -> int:
        """Return how many of its nodes a job lacks."""
        return self.jobs[place].nodes - sum(node in up for node in self.nodes[place])

    def replace(self, place: int, up: Collection[str], pool: list[str], most_missing: int) -> int:
        """Replace lost nodes from the pool if that leaves at most `most_missing`; return how many were taken."""
        live = [node for node in self.nodes[place] if node in up]
        wanted = self.jobs[place].nodes - len(live)
        taken = min(wanted, len(pool))
        if wanted - taken > most_missing:
            return 0
        self.nodes[place] = live + [pool.pop() for _ in range(taken)]
        return taken

    def idle(self, up: Collection[str]) -> list[str]:
        """Return the nodes that are up and that nobody holds."""
        held = {node for nodes in self.nodes for node in nodes}
        return sorted(node for node in up if node not in held)


class Waiting:
    """Restart only: a job that lost a node stands still until that node is back, and starts again."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], ways: Ways) -> None:
        self._held, self._again_s = Held(jobs, nodes), ways.restart_s + ways.lost_work_s
        self._was_hit = [False] * len(jobs)

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job."""
        return [self._follow(place, self._held.missing(place, up)) for place in range(len(self._held.jobs))]

    def _follow(self, place: int, missing: int) -> Effect:
        was_hit, self._was_hit[place] = self._was_hit[place], missing > 0
        if missing:
            return Effect(0.0)
        return Effect(self._held.jobs[place].nodes, self._again_s if was_hit else 0.0)


class Spares:
    """Fixed spares: a lost node is replaced from the pool and the job starts again; without one, the job waits."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], ways: Ways) -> None:
        self._held, self._again_s = Held(jobs, nodes), ways.restart_s + ways.lost_work_s
        self._before: list[frozenset[str]] = [frozenset(nodes) for nodes in self._held.nodes]
        self._waits = [False] * len(jobs)

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job; those that wait are served first come, first served by their order."""
        pool = self._held.idle(up)
        return [self._follow(place, up, pool) for place in range(len(self._held.jobs))]

    def _follow(self, place: int, up: Collection[str], pool: list[str]) -> Effect:
        missing = self._held.missing(place, up)
        if missing and not self._held.replace(place, up, pool, most_missing=0):
            self._waits[place] = True
            return Effect(0.0)
        must_restart, self._waits[place] = bool(missing) or self._waits[place], False
        return Effect(self._held.jobs[place].nodes, self._again_s if must_restart else 0.0)


class Rerouting:
    """ReCycle: peers do the work of missing nodes; spares and nodes that come back take the empty places."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], ways: Ways) -> None:
        assert ways.peer_s is not None
        assert ways.recycle_s is not None
        self._held, self._join_s, self._reroute_s = Held(jobs, nodes), ways.peer_s, ways.recycle_s
        self._again_s = ways.restart_s + ways.lost_work_s
        self._missing, self._stands_still = [0] * len(jobs), [False] * len(jobs)

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job; nodes go first to the job that gains most by them."""
        pool = self._held.idle(up)
        order = sorted(range(len(self._held.jobs)), key=lambda place: self._slowdown(place, up))
        effects = {place: self._follow(place, up, pool) for place in order}
        return [effects[place] for place in range(len(effects))]

    def _slowdown(self, place: int, up: Collection[str]) -> float:
        job = self._held.jobs[place]
        return job.work_on_all_but(self._held.missing(place, up)) / job.nodes

    def _follow(self, place: int, up: Collection[str], pool: list[str]) -> Effect:
        lost = self._held.missing(place, up) > self._missing[place]
        joined = self._held.replace(place, up, pool, most_missing=self._held.jobs[place].nodes)
        missing = self._held.missing(place, up)
        came_back, self._missing[place] = joined > 0 or missing < self._missing[place], missing
        work = self._held.jobs[place].work_on_all_but(missing)
        stood_still, self._stands_still[place] = self._stands_still[place], work == 0
        if work and stood_still:
            return Effect(work, self._again_s)
        return Effect(work, self._join_s if came_back else self._reroute_s if lost else 0.0)
