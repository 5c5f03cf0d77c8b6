"""What one evaluation of a job is: its window, when it is due, who takes part, and what it finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analyzer.windows.jobs import Roster, list_hosts
from analyzer.windows.silence import HostReport, find_reporting
from lockstep.clock import NS_PER_S
from lockstep.topology import TopologyIndex
from lockstep.verdict import FaultClass, RuledOut, Side


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, end excluded."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The rhythm of the analyzer."""

    hop_ns: int = 2 * NS_PER_S  # statistics are per second: more often would see little that is new
    early_ns: int = NS_PER_S  # after one that raised a doubt, the next: rows of one more second are there
    shortest_ns: int = 6 * NS_PER_S  # ten steps of a fast job; whole seconds on both sides
    longest_ns: int = 120 * NS_PER_S  # beyond, memory and time to detect count for more than one more step
    periods: int = 3  # fewer steps, and a single odd one decides


def plan_evaluations(done_until_ns: int, until_ns: int, options: EvaluationOptions) -> list[int]:
    """Return the ends of the evaluations that are due, aligned so that a second run has the same ones.

    >>> plan_evaluations(3, 10, EvaluationOptions(hop_ns=4))
    [4, 8]
    """
    first = (done_until_ns // options.hop_ns + 1) * options.hop_ns
    return list(range(first, until_ns + 1, options.hop_ns))


def window_at(end_ns: int, first_ns: int, period_ns: int | None, options: EvaluationOptions) -> Window:
    """Return what an evaluation at this time covers: some periods, once known, and never before the job began.

    Statistics are per second, so it begins with one, unless it is meant to be shorter than that.
    """
    wanted_ns = options.periods * (period_ns or 0)
    length_ns = min(max(wanted_ns, options.shortest_ns), options.longest_ns)
    grain_ns = NS_PER_S if length_ns >= NS_PER_S else 1
    whole_ns = -(-length_ns // grain_ns) * grain_ns
    start_ns = (end_ns - whole_ns) // grain_ns * grain_ns
    return Window(max(start_ns, min(first_ns, end_ns - 1)), end_ns)


def early_end(done_ns: int, next_ns: int, options: EvaluationOptions) -> int | None:
    """Return the end of an evaluation between two that are a hop or more apart; None where there is no room for it.

    >>> early_end(6 * NS_PER_S, 8 * NS_PER_S, EvaluationOptions()) // NS_PER_S
    7
    >>> early_end(6 * NS_PER_S, 7 * NS_PER_S, EvaluationOptions())
    """
    end_ns = done_ns + options.early_ns
    return end_ns if end_ns < next_ns else None


def hop_at(end_ns: int, first_ns: int, period_ns: int | None, options: EvaluationOptions) -> int:
    """Return how long after the evaluation before it one is worth its cost: half a period shows little that is new.

    While the period is not known it is longer than what went by so far says; no window may be left out.

    >>> hop_at(0, 0, 46 * NS_PER_S, EvaluationOptions()) // NS_PER_S
    23
    >>> [hop_at(end_s * NS_PER_S, 0, None, EvaluationOptions()) // NS_PER_S for end_s in (10, 64, 600)]
    [2, 4, 6]
    """
    wanted_ns = period_ns // 2 if period_ns else min((end_ns - first_ns) // 16, options.shortest_ns)
    return max(wanted_ns, options.hop_ns)


class End(NamedTuple):  # a large job has a million of them, and a dataclass takes four times as long to make
    """One end of a connection; the NIC is None when nothing told which one it is."""

    host: str
    nic: str | None

    def __str__(self) -> str:
        return f"{self.host}/{self.nic}" if self.nic else self.host


@dataclass(frozen=True)
class Context:
    """One evaluation: which job, which stretch of time, who takes part, and who said nothing."""

    job: str
    attempt: int
    window: Window  # what is judged; all hosts that are not silent have sent everything up to its end
    fresh_ns: int  # what is later than this is new since the evaluation before
    roster: Roster
    topology: TopologyIndex | None
    silent: frozenset[str] = frozenset()  # hosts of the job that say nothing: their rows are missing, not healthy
    period_ns: int | None = None  # length of a training step, as far as it has been learnt
    reports: Mapping[str, HostReport] = field(default_factory=dict)  # the newest of each host that sent any
    lost: frozenset[str] = frozenset()  # hosts whose telemetry ended together: nothing says that they are gone
    idle: frozenset[str] = frozenset()  # hosts that have told all, and of whose ranks no operation was seen
    is_early: bool = False  # between two evaluations, because of a doubt: who is not found in it is not missed

    @property
    def parameters(self) -> dict[str, Any]:  # Any: parameters of a query
        """Return what queries about this job and window ask for."""
        return {"job": self.job, "attempt": self.attempt, "start": self.window.start_ns, "end": self.window.end_ns}

    @property
    def host_list(self) -> str:
        """Return the parameter `hosts` of a query that asks `OF_HOSTS`."""
        return list_hosts(self.roster.hosts)

    def list_reporting(self, table: str) -> str:
        """Return the same without the hosts that are silent for a table, because what fills it has stalled."""
        return list_hosts(find_reporting(table, self.roster.hosts, self.reports))

    @property
    def coverage(self) -> float:
        """Return the share of the job's hosts that was seen."""
        return self.coverage_beside(frozenset())

    def coverage_beside(self, others: frozenset[str]) -> float:
        """Return the same of the hosts beside some silent ones."""
        hosts = max(len(self.roster.hosts), self.roster.nodes) - len(others)
        return len(self.roster.hosts - self.silent) / max(hosts, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One suspected fault in one evaluation; incidents are made of findings that come again."""

    fault_class: FaultClass
    component: str
    side: Side | None = None
    likelihood: float  # of this part among all that could explain the same evidence, 0 to 1
    reason: str  # one sentence a person can act on
    evidence: tuple[dict[str, Any], ...] = ()  # Any: each kind of evidence has its own figures
    ruled_out: tuple[RuledOut, ...] = ()
    ambiguous_with: tuple[str, ...] = ()
    ranks_waiting: int | None = None  # held up by the part; None: everybody else
    stands_still: bool = False  # the job does nothing at all because of it, whatever the class
    lost_share: float | None = None  # of the job's time, 0 to 1; None: the stage cannot tell
    since_ns: int | None = None  # when it began, where the stage knows better than the evaluation
    cap: float = 1.0  # no verdict is surer than this: a transport or algorithm on which the method was never proven
    is_certain: bool = False  # true of a hang or an error: needs no second evaluation to be told
    may_isolate: bool = False  # would justify draining a node, were it sure enough
    is_stale: bool = False  # rests on nothing newer than the evaluation before, so it confirms nothing
    slows_pairs: bool = False  # makes the connections of its host look slow, which are not at fault
    is_minor: bool = False  # has cost too little so far to wake anybody for: to be read
