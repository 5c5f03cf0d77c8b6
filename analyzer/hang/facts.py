"""What the store tells about a standstill: how far every rank has come, what happened meanwhile, who is connected."""

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np

from analyzer.windows.silence import HostReport, find_speaking
from analyzer.windows.window import End, Finding
from lockstep.clock import NS_PER_S

ENDED = ("process_exit", "process_gone", "python_exception", "run_exit", "oom")
STOPPED = ("process_stopped", "process_stuck")
PAIRED = ("Send", "Recv")  # counted per peer: the k-th Send to a rank is the k-th Recv there
# All ranks have entered these before the first one is through, so that nobody can end the next one alone.
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "")  # "": a dump that counts all functions as one


@dataclass(frozen=True, slots=True)
class HangOptions:
    """When a standstill is a hang, and when a part is surely the one."""

    # A job that does the same every step is two steps late before anybody is told; one late step is a straggler.
    periods: float = 2.0
    # Where an event tells of a part that ended, was stopped or lost its carrier, one late step is enough to see that
    # the job stands with it.
    event_periods: float = 1.0
    # One operation may take most of a long step; a part that is told to be gone does not come back within these, or
    # is worth an alert if it does.
    event_ns: int = 5 * NS_PER_S
    # Garbage collection and a slow write hold one rank up for about a second, however short the steps are.
    pause_ns: int = NS_PER_S
    # Of what those computed who wait: no rank takes twice as long as the others, however long steps are.
    computed_share: float = 1.0
    # Without any learnt period (nothing came round three times) the first step may still be compiling.
    unlearnt_ns: int = 60 * NS_PER_S
    # Rows of progress come every second; three in a row missing are not delay of the collector.
    quiet_ns: int = 3 * NS_PER_S
    # An event belongs to a standstill that began at most so long after it: buffers and retries hide the begin. In
    # jobs with longer steps that is a whole one: so long a part may not be needed.
    before_ns: int = 10 * NS_PER_S
    # A rank takes the others with it when it ends, rows of progress are a second apart, and five reads in a row say
    # that a process is stuck; whoever ends or is stopped later than that was so by a watchdog or a person.
    after_ns: int = 7 * NS_PER_S
    # What hosts' clocks may differ by, and what a process needs to notice that another one ended and to end itself.
    together_ns: int = NS_PER_S // 50
    # A standstill of which nothing tells the part is told without one: no operation takes that long.
    unnamed_ns: int = 20 * NS_PER_S
    # Ranks of a job that came to its end are gone within so long of each other.
    ending_ns: int = NS_PER_S
    # NCCL retries on IB seven times for 4.3 s each; a Linux TCP connection sends again for about a minute before
    # anybody would call it dead. Until then a stalled wire may come back by itself.
    ib_retry_ns: int = 30 * NS_PER_S
    tcp_retry_ns: int = 60 * NS_PER_S

    def patience_ns(self, period_ns: int | None, interval_ns: int, has_event: bool = False) -> int:
        """Return for how long counters must stand before anything is said; `interval_ns` is between two rows.

        It is shorter where an event tells why they stand.
        """
        if has_event:
            period_ns = self.event_ns if period_ns is None else round(self.event_periods * period_ns)
            return max(min(period_ns, self.event_ns), interval_ns)
        if period_ns is None:
            return self.unlearnt_ns
        return round(self.periods * period_ns) + self.pause_ns + interval_ns


@dataclass(frozen=True)
class Lines:
    """How far ranks have come: parallel arrays, one element per (communicator, rank, function, peer)."""

    process: np.ndarray  # number of the process
    comm: np.ndarray  # u64
    rank: np.ndarray  # inside the communicator
    func: np.ndarray  # str
    peer: np.ndarray  # -1 but for Send and Recv
    enqueued: np.ndarray
    started: np.ndarray
    done: np.ndarray
    since_ns: np.ndarray  # first row, as far as was looked back, in which nothing had begun or ended since
    seen_ns: np.ndarray  # newest row
    state: np.ndarray  # str, what the oldest open step waits for
    head_peer: np.ndarray  # -1: unknown
    head_channel: np.ndarray  # -1: unknown
    open_bytes: np.ndarray  # of the oldest open operation, -1: unknown
    open_dtype: np.ndarray  # str, empty: unknown
    open_algo: np.ndarray  # str, empty: unknown
    open_ns: np.ndarray  # when its host enqueued the oldest open operation, -1: nothing is open or nobody knows
    untimed: np.ndarray  # bool: its newest operations may have begun and ended unseen, and it moves as they come

    def __len__(self) -> int:
        return len(self.process)

    @classmethod
    def none(cls) -> "Lines":
        """Return no lines."""
        return cls(**{name: np.zeros(0, np.int64) for name in cls.__dataclass_fields__})

    def pick(self, which: np.ndarray) -> "Lines":
        """Return some of the lines."""
        return Lines(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class People:
    """All processes of the job, by number; those that no communicator told of come after the others."""

    host_of: np.ndarray  # str
    gpu_of: np.ndarray  # -1: unknown
    world_rank_of: np.ndarray  # its rank in the job, or in its communicator where that is unknown

    def __len__(self) -> int:
        return len(self.host_of)


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An event on a host of the job."""

    host: str
    ts_ns: int
    kind: str
    component: str
    message: str  # for people
    rank: int | None = None  # in the job, of the process it is about
    signal: int | None = None  # that ended the process


@dataclass(frozen=True, slots=True)
class Pair:
    """A connection between two processes; a side that told nothing is None."""

    src: End | None
    dst: End | None
    transport: str | None
    path: tuple[str, ...] = ()  # links that probes found its packets to take, as the topology calls them


@dataclass(frozen=True)
class StepCounts:
    """Network steps that ended, in the operations that somebody is inside of and the two before: parallel arrays."""

    comm: np.ndarray  # u64, sorted
    func: np.ndarray  # str
    seq: np.ndarray
    rank: np.ndarray  # inside the communicator
    channel: np.ndarray
    peer: np.ndarray
    sends: np.ndarray  # bool: what it sent, or what it received
    steps: np.ndarray
    last_ns: np.ndarray  # when the newest of them ended

    def __len__(self) -> int:
        return len(self.comm)


_NONE = np.zeros(0, np.int64)
_NEVER_NS = np.iinfo(np.int64).max
NO_STEPS = StepCounts(
    _NONE.astype(np.uint64), _NONE.astype(object), _NONE, _NONE, _NONE, _NONE, _NONE.astype(bool), _NONE, _NONE
)


PairKey = tuple[int, int, int, int]  # communicator, sending rank, receiving rank, channel
OperationKey = tuple[int, str, int]  # communicator, function, number counted from 0


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a collective, and which ranks of its communicator gave them."""

    operation: OperationKey
    size: int  # bytes, -1: unknown
    dtype: str  # empty: unknown
    count: int  # of ranks
    ranks: tuple[int, ...]  # the first of them


@dataclass(frozen=True)
class ProgressFacts:
    """One evaluation: all lines, and what is needed about the standstill where there is one."""

    lines: Lines
    people: People
    now_ns: int  # newest row
    period_ns: int | None  # as far as it is known or could be learnt
    interval_ns: int  # between two rows of one line; 0: rows were written on change
    all_move: bool = False  # everybody was seen to move, so nothing else was read
    is_dump: bool = False  # made by a watchdog that gave up: no starts, and the time of the dump is unknown
    events: tuple[HostEvent, ...] = ()
    computed_ns: int = 0  # that those who stand in an operation did nothing else before it
    down_since_ns: dict[End, int] = field(default_factory=dict)  # NICs that lost their carrier
    down_links: dict[str, int] = field(default_factory=dict)  # between switches: since when a port has no carrier
    reports: dict[str, HostReport] = field(default_factory=dict)  # of the collectors of hosts, the newest of each
    last_row_ns: dict[str, int] = field(default_factory=dict)  # newest row of hosts whose collector says nothing
    pairs: dict[PairKey, Pair] = field(default_factory=dict)
    nics: dict[str, tuple[str, ...]] = field(default_factory=dict)  # that the ranks of each host use, where known
    steps: StepCounts = NO_STEPS
    calls: tuple[Call, ...] = ()  # of ranks that have ended what others are inside of

    @property
    def reporting(self) -> frozenset[str]:
        """Return the hosts whose collectors go on telling: what they do not tell of did not happen.

        Those are there, too, whose agents have said that they end.
        """
        ended = {host for host, report in self.reports.items() if report.has_ended}
        return find_speaking(self.reports, self.now_ns) | ended


@dataclass(frozen=True)
class HangMemory:
    """What one evaluation leaves for the next: since when the job stands still, and why."""

    since_ns: int | None = None
    findings: tuple[Finding, ...] = ()
    lines: int = 0  # of which anything was heard then
    until_ns: int | None = None  # its end; None: there was none


@dataclass(frozen=True)
class Standstill:
    """Who is heard, who has not moved for too long, and which lines somebody is inside of meanwhile."""

    present: np.ndarray  # by process: its rows reach up to the end of the evaluation
    still: np.ndarray  # by process: heard, and nothing began or ended
    inside: np.ndarray  # by line: an operation has begun and does not end
    unsettled: np.ndarray  # by line: is inside one, too, but its newest row is too old to tell that it stands there
    since_ns: int  # when the last of those who are inside moved for the last time

    @property
    def is_hang(self) -> bool:
        """Return whether anybody waits at all."""
        return bool(self.inside.any())


def find_standstill(
    facts: ProgressFacts, silent: frozenset[str], options: HangOptions, has_event: bool = False
) -> Standstill:
    """Return who stands still at the end of an evaluation; sooner where events tell why. Cost: O(lines)."""
    lines, people = facts.lines, facts.people
    seen_ns = _latest(lines.process, lines.seen_ns, len(people))
    moved_ns = _moved(facts)
    fresh = facts.now_ns - options.quiet_ns
    # A host that has sent everything had nothing new to tell.
    present = (seen_ns >= fresh) | _is_on(people, facts.reporting)
    present &= (seen_ns >= 0) & ~_is_on(people, silent)
    patience = 0 if facts.is_dump else options.patience_ns(facts.period_ns, facts.interval_ns, has_event)
    if not has_event and not facts.is_dump:
        patience = max(patience, round(options.computed_share * facts.computed_ns))
    still = present & (facts.now_ns - moved_ns >= patience)
    # What was not seen to begin stands only where an event tells so.
    unseen = np.where(lines.untimed & has_event, lines.enqueued, lines.done)
    begun = lines.enqueued if facts.is_dump else np.where(lines.untimed, unseen, lines.started)
    inside = (begun > lines.done) & still[lines.process]
    # Whether others wait for one that ended or was stopped is for those to show who are inside.
    still |= present & (facts.now_ns - _halted(facts, options) >= patience)
    unsettled = (begun > lines.done) & (present & ~still)[lines.process] & (lines.seen_ns - lines.since_ns < patience)
    since_ns = int(moved_ns[lines.process[inside]].max(initial=0))
    return Standstill(present, still, inside, unsettled & (facts.interval_ns > 0), since_ns)


def drop_unknown(lines: Lines) -> Lines:
    """Return the lines without those of which nobody ever heard a start: what is open there, nobody knows."""
    return lines.pick((lines.started > 0) | (lines.state != "unknown"))


def _moved(facts: ProgressFacts) -> np.ndarray:
    """Return when each process moved for the last time, on the clock of the newest row of all."""
    lines = facts.lines
    # How long it stands is a difference on its own host's clock; only then is it put on the common one.
    own_seen = _latest(lines.process, lines.seen_ns, len(facts.people))
    moved_ns: np.ndarray = facts.now_ns - (own_seen - _latest(lines.process, lines.since_ns, len(facts.people)))
    return moved_ns


def _halted(facts: ProgressFacts, options: HangOptions) -> np.ndarray:
    """Return when each process ended or was stopped, as events tell it; those that run do so far ahead.

    It writes no rows any more, or few: the newest is that of its last movement, however long ago. An event from well
    before that is about another process, or about one that went on.
    """
    newest: dict[tuple[str, int | None], HostEvent] = {}
    for event in sorted(facts.events, key=lambda event: event.ts_ns):
        if event.kind in (*ENDED, *STOPPED, "process_continued"):
            newest[event.host, event.rank] = event
    halted_ns = np.full(len(facts.people), _NEVER_NS, np.int64)
    if newest:
        row_ns = _latest(facts.lines.process, facts.lines.since_ns, len(facts.people)).tolist()
        keys = zip(facts.people.host_of.tolist(), facts.people.world_rank_of.tolist(), strict=True)
        for process, event in ((process, newest[key]) for process, key in enumerate(keys) if key in newest):
            if event.kind != "process_continued" and event.ts_ns >= row_ns[process] - options.quiet_ns:
                halted_ns[process] = event.ts_ns
    return halted_ns


def _latest(process: np.ndarray, timestamps_ns: np.ndarray, count: int) -> np.ndarray:
    latest = np.full(count, -1, np.int64)
    np.maximum.at(latest, process, timestamps_ns)
    return latest


def _is_on(people: People, hosts: Set[str]) -> np.ndarray:
    """Return for each process whether it runs on one of some hosts."""
    return np.array([host in hosts for host in people.host_of.tolist()], bool)
