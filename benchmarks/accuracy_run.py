"""One run of the accuracy benchmark: a scenario in an embedded store, analyzer and peers on the same rows."""

import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from benchmarks.accuracy_score import Case, Named, healthy_until_s, named_of
from benchmarks.accuracy_truth import Facts, Known, find_truth, find_twins
from benchmarks.accuracy_worlds import World, draw_world
from lockstep.clock import NS_PER_S
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from simulator.faults import over_s
from simulator.operations import Operation
from simulator.pairs import NEVER, Ints, Times
from simulator.rows import Identity
from simulator.scenario import BENIGN, Scenario
from simulator.simulation import Simulation
from simulator.telemetry import SimulatedTelemetry

WINDOW_S = 5
_SLOW = 1.5  # times the median cell; the paper gives no number, and this lets the rule see a NIC at two thirds
_FEWEST_CELLS = 2  # of a row or column: with one cell nobody can tell a row from a column
_SLOWER = 1.1  # a job is slow when its operations come a tenth more rarely than in its first windows
_FIRST_WINDOWS = 2
_MARGIN = 10.0

_Cell = tuple[str, str]
_Waits = Mapping[int, list[dict[str, Any]]]  # rows of each window; Any: names and numbers

_CELLS = f"""
WITH sends AS (
    SELECT comm, rank, peer, channel, host, nic, intDiv(ts_ns, {WINDOW_S * NS_PER_S}) AS window,
           sum(wire_ns) AS wire, sum(bytes) AS size
    FROM transfer_stats WHERE direction = 'send' AND wire_ns IS NOT NULL AND peer >= 0
    GROUP BY comm, rank, peer, channel, host, nic, window
), receives AS (
    SELECT comm, rank, peer, channel, any(host) AS recv_host, any(nic) AS recv_nic
    FROM transfer_stats WHERE direction = 'recv' AND peer >= 0 GROUP BY comm, rank, peer, channel
)
SELECT window, concat(host, if(nic IS NULL, '', concat('/', nic))) AS src,
       concat(recv_host, if(recv_nic IS NULL, '', concat('/', recv_nic))) AS dst,
       sum(wire) / sum(size) AS latency
FROM sends INNER JOIN receives ON receives.comm = sends.comm AND receives.rank = sends.peer
    AND receives.peer = sends.rank AND receives.channel = sends.channel
WHERE host != recv_host
GROUP BY window, src, dst HAVING sum(size) > 0 ORDER BY window, src, dst
"""
_WAITS = f"""
WITH members AS (
    SELECT comm, rank, attempt, any(world_rank) AS world, any(host) AS place, any(gpu) AS device
    FROM comms FINAL GROUP BY comm, rank, attempt
)
SELECT intDiv(ts_ns, {WINDOW_S * NS_PER_S}) AS window, world, any(place) AS host, any(device) AS gpu,
       sum(dur_sum_ns) AS waited, sum(n) AS operations
FROM op_stats INNER JOIN members ON members.comm = op_stats.comm AND members.rank = op_stats.rank
    AND members.attempt = op_stats.attempt
GROUP BY window, world ORDER BY window, world
"""


@dataclass(frozen=True, slots=True)
class Blame:
    """A part that a rule names in one window."""

    component: str
    side: str | None = None
    aliases: tuple[str, ...] = ()


def peer_verdicts(store: Store, start_ns: int) -> dict[str, list[Named]]:
    """Return what each of the peers says about the job in a store."""
    cells: dict[int, dict[_Cell, float]] = defaultdict(dict)
    for row in store.query(_CELLS).to_pylist():
        cells[row["window"]][row["src"], row["dst"]] = row["latency"]
    waits: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in store.query(_WAITS).to_pylist():
        waits[row["window"]].append(row)
    return {
        "delay matrix": confirm({window: find_slow(latency) for window, latency in cells.items()}, start_ns),
        "waits least, 10x": confirm(find_least_waiting(waits, _MARGIN), start_ns),
        "waits least": confirm(find_least_waiting(waits, 1.0), start_ns),
    }


def find_slow(latency: Mapping[_Cell, float]) -> set[Blame]:
    """Return the slow rows, columns and cells of a matrix of mean latencies.

    >>> find_slow({("a", "b"): 9.0, ("a", "c"): 9.0, ("b", "c"): 1.0, ("c", "b"): 1.0, ("d", "b"): 1.0})
    {Blame(component='host:a', side='tx', aliases=())}
    """
    if not latency:
        return set()
    limit = _SLOW * median(latency.values())
    slow_cells = {cell for cell, value in latency.items() if value > limit}
    rows = _whole(latency, slow_cells, 0)
    columns = _whole(latency, slow_cells, 1)
    lone = {cell for cell in slow_cells if cell[0] not in rows and cell[1] not in columns}
    return {
        *(Blame(_part(source), "tx") for source in rows),
        *(Blame(_part(target), "rx") for target in columns),
        *(Blame(f"link:{source}--{target}") for source, target in lone),
    }


def _whole(latency: Mapping[_Cell, float], slow_cells: set[_Cell], axis: int) -> set[str]:
    every, slow = Counter(cell[axis] for cell in latency), Counter(cell[axis] for cell in slow_cells)
    return {end for end, count in slow.items() if count == every[end] >= _FEWEST_CELLS}


def _part(end: str) -> str:
    return f"nic:{end}" if "/" in end else f"host:{end}"


def find_least_waiting(waits: _Waits, margin: float) -> dict[int, set[Blame]]:
    """Return the rank that waits least in each slow window, when the others wait that many times as long."""
    pace = {window: sum(row["operations"] for row in rows) for window, rows in waits.items()}
    usual = median([pace[window] for window in sorted(pace)[1 : 1 + _FIRST_WINDOWS]] or [0.0])
    found: dict[int, set[Blame]] = {}
    for window, rows in waits.items():
        least = min(rows, key=lambda row: int(row["waited"]))
        is_far = median(int(row["waited"]) for row in rows) >= margin * least["waited"]
        host, rank = least["host"], least["world"]  # the rule names a rank, so every name of it is right
        blame = Blame(f"gpu:{host}/{least['gpu']}", None, (f"host:{host}", f"rank:{rank}"))
        found[window] = {blame} if pace[window] * _SLOWER < usual and is_far else set()
    return found


def confirm(found: Mapping[int, set[Blame]], start_ns: int) -> list[Named]:
    """Return what was seen in two windows in succession, once, from the end of the second one on."""
    named: dict[Blame, Named] = {}
    for window in sorted(found):
        for blame in found[window] & found.get(window - 1, set()):
            end_s = ((window + 1) * WINDOW_S * NS_PER_S - start_ns) / NS_PER_S
            first = named[blame].opened_s if blame in named else end_s
            fault_class = "noncomm_slow" if blame.component.startswith("gpu:") else "comm_slow"
            named[blame] = Named(blame.component, fault_class, first, end_s, blame.side, aliases=blame.aliases)
    return list(named.values())


START_NS = 1_700_000_000 * NS_PER_S  # as `lockstep simulate` has it, so that captures of a seed are the same rows
_ROWS_PER_INSERT = 400_000
_FEWEST_BEFORE = 5  # steps that tell what is usual
_FIRST_STEPS = 3  # in which communicators are formed and kernels tuned

Result = dict[str, Any]  # a line of the results: what JSON holds
PassOn = Callable[[str, pa.Table], pa.Table]  # name of a table and rows; those that arrive


@dataclass(frozen=True, slots=True)
class Truth:
    """What only the simulator knows; None where nobody can tell."""

    step_s: float | None = None  # of a step before the fault
    lost_s: float | None = None  # that the fault cost the whole job


class _WatchedSimulation(Simulation):
    """A simulation that also remembers how long its steps took, for the time to detect in steps."""

    def __init__(self, scenario: Scenario, seed: int, hosts: Ints | None = None) -> None:
        super().__init__(scenario, seed, hosts)
        self.steps: list[tuple[float, float]] = []  # begin and length in seconds
        self._flows: dict[tuple[object, ...], np.ndarray] = {}
        self.paths: dict[tuple[object, ...], np.ndarray] = {}  # of all connections, a row of directed links each

    def run_until(self, until_ns: float) -> Iterator[Operation]:
        for operation in super().run_until(until_ns):
            key = (operation.attempt, operation.comms.kind, operation.func)
            if operation.transfers and key not in self._flows:
                self._flows[key] = np.stack([operation.transfers.tx_nic, operation.transfers.rx_nic])
                self.paths[key] = operation.transfers.paths.reshape(-1, operation.transfers.paths.shape[-1])
            yield operation

    @property
    def stands_still(self) -> bool:
        return bool(self.running.stream.max() >= NEVER / 2)

    def pairs(self) -> frozenset[tuple[str, str]]:
        """Return the NICs that sent to each other, such as h0/eth1."""
        per_host = self.scenario.cluster.nics_per_host
        flows = np.concatenate([np.zeros((2, 0), np.int64), *self._flows.values()], axis=1)
        names = [[f"h{nic // per_host}/eth{nic % per_host}" for nic in side.tolist()] for side in flows]
        return frozenset(zip(*names, strict=True))

    def take_steps(self) -> list[tuple[int, int, Ints, Times, Times]]:
        taken = super().take_steps()
        # The first rank's step is as good as any: they wait for each other.
        self.steps += [(begin[0] / NS_PER_S, (end[0] - begin[0]) / NS_PER_S) for _, _, _, begin, end in taken]
        return taken


def examine(case: Case) -> Result:
    """Run one case and return what was named; a crash of the analyzer is a result as well."""
    begin = time.process_time()
    scenario, known = case.scenario_at_size(), Known()
    with _embedded_store() as store:
        if case.world >= 0:
            topology, truth, known = _simulate_world(store, draw_world(case.seed, case.world))
        else:
            topology, truth = _simulate(store, scenario, case.seed)
        simulated_at = time.process_time()
        named, error = _diagnose(store, topology)
        peers = {} if case.world >= 0 else peer_verdicts(store, START_NS)
    return {
        "key": case.key,
        "case": asdict(case),
        "named": [asdict(one) for one in named],
        "peers": {name: [asdict(one) for one in verdicts] for name, verdicts in peers.items()},
        **asdict(truth),
        **_as_json(known),
        "error": error,
        "simulating_cpu_s": round(simulated_at - begin, 2),
        "analysing_cpu_s": round(time.process_time() - simulated_at, 2),
    }


@contextmanager
def _embedded_store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="lockstep-accuracy-") as folder, open_store(f"chdb://{folder}") as store:
        migrate(store, Layout(store.database), START_NS)
        yield store


def _diagnose(store: Store, topology: TopologyIndex | None) -> tuple[list[Named], str]:
    try:
        return [named_of(incident, START_NS) for incident in diagnose(store, topology, FollowOptions())], ""
    except Exception as error:  # noqa: BLE001 - a crash is what the table must show, and the other runs go on
        return [], f"{type(error).__name__}: {error}"


def _as_json(known: Known) -> Result:
    lists = {"expect": known.expect, "allowed": known.allowed}
    told = {
        name: [fault.model_dump(by_alias=True, mode="json") for fault in faults] for name, faults in lists.items()
    }
    return told | {"why": list(known.why)}


def _simulate(store: Store, scenario: Scenario, seed: int) -> tuple[TopologyIndex, Truth]:
    """Put all rows of a scenario into a store, and return its topology and what is true of its steps."""
    simulation = _WatchedSimulation(scenario, seed)
    _fill(store, simulation)
    lost_s = find_lost_s(simulation.steps, simulation.stands_still, scenario)
    return TopologyIndex(simulation.topology), Truth(_usual_step_s(simulation.steps, scenario), lost_s)


def _fill(store: Store, simulation: _WatchedSimulation, pass_on: PassOn = lambda _, rows: rows) -> None:
    scenario, waiting = simulation.scenario, dict[str, list[pa.Table]]()
    telemetry = SimulatedTelemetry(simulation, Identity(scenario.name, START_NS), heartbeats=True)
    for second in range(1, int(scenario.duration_s) + 1):
        for name, rows in telemetry.advance(START_NS + second * NS_PER_S).items():
            waiting.setdefault(name, []).append(pass_on(name, rows))
            if sum(table.num_rows for table in waiting[name]) > _ROWS_PER_INSERT:
                token = f"{scenario.name}/{name}/{second}"
                store.insert(TABLE_BY_NAME[name], pa.concat_tables(waiting.pop(name)), token)
    for name, tables in waiting.items():
        store.insert(TABLE_BY_NAME[name], pa.concat_tables(tables), f"{scenario.name}/{name}/rest")


def _simulate_world(store: Store, world: World) -> tuple[TopologyIndex, Truth, Known]:
    """Put what arrives of a world's rows into a store, and return what is true of it and what can be known."""
    simulation, hosts = _WatchedSimulation(world.scenario, world.seed), world.scenario.cluster.hosts
    jobs = [(simulation, range(hosts))]
    if world.neighbour:
        those = range(hosts, world.scenario.cluster.all_hosts)
        jobs += [(_WatchedSimulation(world.neighbour, world.seed, np.array(those)), those)]
    for job, numbers in jobs:
        mine = pa.array([f"h{number}" for number in numbers])

        def pass_on(name: str, rows: pa.Table, mine: pa.Array = mine) -> pa.Table:
            return world.chain.pass_on(name, rows.filter(pc.is_in(rows["host"], mine)), START_NS)

        _fill(store, job, pass_on)
    paths = np.concatenate([each for job, _ in jobs for each in job.paths.values()] or [np.zeros((0, 1), np.int64)])
    twins = {
        fault.component: find_twins(fault.component, fault.side, simulation.network, paths)
        for fault in world.scenario.expect
        if fault.fault_class in ("comm_slow", "comm_hang")  # of who is late, connections say nothing
    }
    beside = [step for job, _ in jobs[1:] for step in job.steps]
    healthy = _healthy_steps(world)
    facts = Facts(simulation.steps, healthy, simulation.pairs(), simulation.stands_still, twins, beside)
    truth = Truth(_usual_step_s(simulation.steps, world.scenario))
    return TopologyIndex(simulation.topology), truth, find_truth(world, facts)


def _healthy_steps(world: World) -> list[tuple[float, float]]:
    """Return the steps of a world in which nothing breaks and all else is the same."""
    if not world.scenario.expect:
        return []
    kept = tuple(
        fault
        for fault in world.scenario.timeline
        if fault.part == "fabric" or (fault.effect in BENIGN and fault.effect != "heal")
    )
    simulation = _WatchedSimulation(world.scenario.model_copy(update={"timeline": kept}), world.seed)
    deque(simulation.run_until(world.scenario.duration_s * NS_PER_S), maxlen=0)
    simulation.take_steps()
    return simulation.steps


def _usual_step_s(steps: list[tuple[float, float]], scenario: Scenario) -> float | None:
    """Return the median step before the fault, or of all where the fault was there from the start."""
    before = [length for begin, length in steps if begin + length <= healthy_until_s(scenario)][_FIRST_STEPS:]
    usual = before or [length for _, length in steps]
    return round(float(median(usual)), 4) if usual else None


def find_lost_s(steps: Sequence[tuple[float, float]], stands_still: bool, scenario: Scenario) -> float | None:
    """Return how much longer the steps of a fault took than those before it, with a standstill to the end.

    None where none were before it, or where another attempt follows.
    """
    began_s, until_s = healthy_until_s(scenario), scenario.duration_s
    before = [length for begin, length in steps if begin + length <= began_s][_FIRST_STEPS:]
    if len(before) < _FEWEST_BEFORE or any(fault.effect == "restart" for fault in scenario.timeline):
        return None
    usual = fmean(length for length in before if length < 2 * median(before))  # without checkpoints
    last_s = min(over_s(scenario.timeline), until_s)
    ill = [(begin, length) for begin, length in steps if begin + length > began_s and begin < last_s]
    lost_s = sum(length - usual for _, length in ill)  # the last one may end after the scenario, and is reported
    stood_s = until_s - max(began_s, *(begin + length for begin, length in steps)) if stands_still else 0.0
    return round(lost_s + max(stood_s, 0.0), 3)
