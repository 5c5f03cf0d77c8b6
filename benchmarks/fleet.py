"""The head node's claim: how many hosts one gateway and one store carry, and what an outage of the store costs.

Every agent is true to the protocol: own token, host, boot and numbers, one connection, a batch at the moments at
which a collector of its name reads, the next only after a receipt. Gateway (`lockstep serve api`) and ClickHouse are
real processes on this machine; so are the agents, whose CPU time is reported and not counted. Fleets grow until
one is not sustained (benchmarks/fleet_run.py says what that means); the outage is played at the floor or below.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, Note, scratch
from benchmarks.fleet_head import GPUS_PER_HOST, Head, wait_until
from benchmarks.fleet_outage import (
    Ledger,
    Outage,
    OutageOutcome,
    count_rows,
    disk_use,
    find_differences,
    play_outage,
    repeated_heartbeats,
    rows_per_core_s,
    settle,
)
from benchmarks.fleet_run import Judgement, RunPlan, judge, run_fleet
from benchmarks.small_jobs import hostile_figures, lag_figure
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import LockstepError

FLOOR_AGENTS, GOAL_AGENTS = 512, 1_280
_FLOOR_DELAY_S, _GOAL_DELAY_S = 5.0, 2.0  # as for one host, from ring to row
_DRAIN_S = 60.0
_JOBS = 100
_PROCESSES = (1, 2, 4)  # of the analyzer
_OF_POISONED, _INVENTED = 50, 1_000  # jobs
_GAP_S = 5  # between the seconds that rows of two runs carry


MINUTE_AWAY = Outage(before_s=10, away_s=60, after_s=30)


@dataclass(frozen=True)
class Options:
    """How large and how long."""

    ladder: tuple[int, ...] = (64, 128, 256, FLOOR_AGENTS, GOAL_AGENTS)
    warm_up_s: int = 6
    measured_s: int = 20
    outage: Outage = MINUTE_AWAY
    outage_agents: int = FLOOR_AGENTS
    limit_hosts: int = 128
    limit_seconds: int = 10
    settle_s: float = 30.0
    narrow: bool = True  # try once between the largest fleet that is sustained and the smallest that is not


QUICK = Options(
    ladder=(32,),
    warm_up_s=2,
    measured_s=4,
    outage=Outage(before_s=2, away_s=2, after_s=2),
    outage_agents=16,
    limit_hosts=32,
    limit_seconds=2,
    settle_s=2.0,
    narrow=False,
)


@dataclass(frozen=True)
class FleetResult:
    """Everything that was measured."""

    best: Judgement | None
    failed: Judgement | None  # the smallest fleet that was not sustained
    store_rows_per_core_s: float
    bytes_per_row: float
    settled_rows: int
    outage: OutageOutcome
    missing: int
    surplus: int
    batches: int


def measure(quick: bool, note: Note, jobs: bool = False) -> tuple[Figure, ...]:
    """Return the figures of the fleet; with `jobs` that of the analyzer that follows many of them."""
    if jobs:
        lags = (lag_figure(10 if quick else _JOBS, processes) for processes in _PROCESSES)
        return (*lags, *hostile_figures(*((5, 20) if quick else (_OF_POISONED, _INVENTED))))
    options = QUICK if quick else Options()
    with scratch() as folder:
        return tuple(figures_of(measure_fleet(options, folder, note), quick))


def measure_fleet(options: Options, directory: Path, note: Note) -> FleetResult:
    """Play all runs against one head node in a directory."""
    note("starting a gateway and a ClickHouse server")
    with Head(directory) as head:
        bench = _Bench(head, options, note)
        best, failed = find_largest(options.ladder, bench.try_fleet, options.narrow)
        note("waiting for merges, to see what a row takes on disk")
        settle(head.store, options.settle_s)
        size, rows = disk_use(head.store)
        note("inserting the same rows without a gateway, as the limit")
        limit = rows_per_core_s(
            head, range(options.limit_hosts), bench.next_second(options.limit_seconds), options.limit_seconds
        )
        agents = min(options.outage_agents, best.agents if best else options.ladder[0])
        outage = bench.play_outage(agents)
        missing, surplus = bench.compare()
        return FleetResult(
            best, failed, limit, size / max(rows, 1), rows, outage, missing, surplus, bench.ledger.taken
        )


def find_largest(
    ladder: tuple[int, ...], try_fleet: Callable[[int], Judgement], narrow: bool
) -> tuple[Judgement | None, Judgement | None]:
    """Return the largest fleet that is sustained and the smallest that is not, as far as the ladder tells."""
    best: Judgement | None = None
    for agents in ladder:
        tried = try_fleet(agents)
        if not tried.is_sustained:
            if not (narrow and best):
                return best, tried
            between = try_fleet((best.agents + tried.agents) // 2)
            return (between, tried) if between.is_sustained else (best, between)
        best = tried
    return best, None


class _Bench:
    """One head node and the runs that were played against it."""

    def __init__(self, head: Head, options: Options, note: Note) -> None:
        self._head, self._options, self._note = head, options, note
        self._tokens: dict[int, str] = {}
        self._second = SystemClock().now_ns() // NS_PER_S
        self.ledger = Ledger()

    def next_second(self, seconds: int) -> int:
        """Return the first of so many seconds that no rows carry yet."""
        first, self._second = self._second, self._second + seconds + _GAP_S
        return first

    def try_fleet(self, agents: int) -> Judgement:
        options = self._options
        seconds = options.warm_up_s + options.measured_s
        self._note(f"{agents:,} agents for {seconds} s")
        plan = RunPlan(range(agents), self.next_second(seconds), seconds, options.warm_up_s)
        run = run_fleet(self._head, self._tokens_for(agents), plan, self._note)
        self.ledger.add(run.sent)
        self._drain()
        judgement = judge(run)
        self._note(f"  {describe(judgement)}")
        return judgement

    def play_outage(self, agents: int) -> OutageOutcome:
        outage = self._options.outage
        self._note(f"{agents:,} agents for {outage.seconds} s, the store away for {outage.away_s} of them")
        plan = RunPlan(range(agents), self.next_second(outage.seconds), outage.seconds, grace_s=120.0)
        outcome = play_outage(self._head, self._tokens_for(agents), plan, outage, self._note)
        self.ledger.add(outcome.run.sent)
        self._drain()
        return outcome

    def compare(self) -> tuple[int, int]:
        """Return rows missing and rows too many, over all runs."""
        self._note("counting the rows of every host and table")
        expected = self.ledger.expected()
        missing, surplus = find_differences(expected, count_rows(self._head.store, expected))
        return missing, surplus + repeated_heartbeats(self._head.store)

    def _drain(self) -> None:
        if not wait_until(lambda: not self._head.backlog_bytes, _DRAIN_S):
            self._note(f"  {self._head.backlog_bytes / 1e6:,.0f} MB still wait after {_DRAIN_S:.0f} s")
        if not self._head.is_gateway_alive():
            raise LockstepError(f"the gateway ended: {self._head.gateway_output()[-2000:]}")

    def _tokens_for(self, agents: int) -> dict[int, str]:
        missing = [host for host in range(agents) if host not in self._tokens]
        self._tokens |= self._head.make_tokens(missing)
        return self._tokens


def describe(judgement: Judgement) -> str:
    """Return one line about a run, for who watches."""
    verdict = "sustained" if judgement.is_sustained else "not sustained: " + ", ".join(judgement.trouble)
    cores = judgement.cores
    return (
        f"{judgement.rows_per_s:,.0f} rows/s, receipts {judgement.ack.p50_s * 1e3:,.0f} ms (p99 "
        f"{judgement.ack.p99_s * 1e3:,.0f}), rows found after {judgement.delay.p50_s:.1f} s (p99 "
        f"{judgement.delay.p99_s:.1f}), cores: gateway {cores.gateway:.2f}, store {cores.store:.2f}, "
        f"agents {cores.senders:.2f}, others {cores.others:.2f}; {verdict}"
    )


def figures_of(result: FleetResult, quick: bool) -> Iterator[Figure]:
    """Yield the figures; a quick run is too small to say anything about the floor."""
    best = result.best
    floor, goal = (None, None) if quick else (FLOOR_AGENTS, GOAL_AGENTS)
    beside = f"{result.failed.agents:,} not: {result.failed.trouble[0]}" if result.failed else "more were not tried"
    yield Figure("agents sustained", best.agents if best else 0, "agents of 8 GPUs", floor, goal, True, beside)
    if best:
        yield from _load_figures(best, result)
    yield from _outage_figures(result)


def _load_figures(best: Judgement, result: FleetResult) -> Iterator[Figure]:
    cores, limit = best.cores, result.store_rows_per_core_s
    per_hour_gb = result.bytes_per_row * best.rows_per_s * 3600 / 1e9
    yield Figure("rows taken", best.rows_per_s, "rows/s", reference=f"store alone {limit:,.0f} rows/s per core")
    yield Figure("gateway", cores.gateway, "cores", reference=f"agents played with {cores.senders:.2f}")
    ideal = f"{best.rows_per_s / limit:.2f} at the rate of the store alone"
    yield Figure("store", cores.store, "cores", reference=ideal)
    shared = "of whoever shares the machine: above 0.2 this run shows less than the head node can do"
    yield Figure("neighbours", cores.others, "cores", reference=shared)
    yield Figure("GPUs carried", best.agents * GPUS_PER_HOST / cores.head, "GPUs per head-node core")
    yield Figure("receipt, p99", best.ack.p99_s * 1e3, "ms", reference=f"p50 {best.ack.p50_s * 1e3:,.0f} ms")
    half = f"p50 {best.delay.p50_s:.1f} s, looked every 0.25 s"
    yield Figure("sent to queryable, p99", best.delay.p99_s, "s", _FLOOR_DELAY_S, _GOAL_DELAY_S, False, half)
    measured = f"{result.bytes_per_row:.1f} bytes/row, extrapolated from {result.settled_rows:,} merged rows"
    yield Figure("on disk", per_hour_gb, "GB per hour", reference=measured)


def _outage_figures(result: FleetResult) -> Iterator[Figure]:
    outage = result.outage
    agents = f"{len(outage.run.plan.hosts):,} agents"
    yield Figure("store away: backlog", outage.peak_bytes / 1e6, "MB", reference=agents)
    yield Figure("store away: receipt, p99", outage.ack.p99_s * 1e3, "ms", reference="of what came meanwhile")
    load = "under the same load" if outage.is_drained_under_load else "the agents had ended before that"
    yield Figure("store back: drained after", outage.drain_s, "s", reference=load)
    beside = f"of {result.batches:,} acknowledged batches, outage included"
    yield Figure("rows lost", result.missing, "rows", 0, 0, False, beside)
    yield Figure("rows doubled", result.surplus, "rows", 0, 0, False, beside)
