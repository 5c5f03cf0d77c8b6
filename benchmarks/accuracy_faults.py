"""What may go wrong in a drawn world: faults and the verdicts that are right on them, and what becomes of its rows.

The same rows meet the same fate however they are cut into batches: every choice is a hash of what a row says.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import host_name, link_name, nic_name
from lockstep.verdict import FaultClass
from simulator.scenario import ClusterShape, Expectation, JobShape, build_topology

JOB = "world"  # what the job is called whose faults are drawn
_EVER_S = 3_600.0  # a verdict is never late: how soon one comes is measured elsewhere
Random = np.random.Generator
Drawn = TypeVar("Drawn")
_WHEN = {"collectives": "enqueue_ns", "transfers": "first_ns", "step_samples": "posted_ns", "steps": "end_ns"}
_KNOWN_AT = {"collectives": "end_ns", "transfers": "last_ns", "step_samples": "done_ns"}  # then a row can be sent
_KEPT = ("comms", "connections", "paths", "agents")  # said again and again by real agents: never lost for good
_WAITS = ("gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns", "wire_max_ns")
_HOLE_S, _APART_S = 0.5, 0.37  # of the governor: how long it looks away, and by how much ranks are staggered
Numbers = np.ndarray


def pick(random: Random, options: Sequence[Drawn], weights: Sequence[float] = ()) -> Drawn:
    share = np.array(weights or [1.0] * len(options), float)
    return options[int(random.choice(len(options), p=share / share.sum()))]


def between(random: Random, low: float, high: float) -> float:
    """Return a number whose logarithm is spread evenly: short and small ones as often as long and large ones."""
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


@dataclass(frozen=True)
class Place:
    """Where and when something may break."""

    cluster: ClusterShape
    job: JobShape
    step_s: float
    duration_s: float

    def onset_s(self, random: Random) -> float:
        """Return when: before the first row in one of four."""
        return 0.0 if random.random() < 0.25 else round(self.duration_s * random.uniform(0.1, 0.7), 2)


@dataclass(frozen=True)
class Broken:
    """What is wrong with a world, and which verdicts on it are right."""

    lines: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    host: str = ""  # that has it
    silent: tuple[str, ...] = ()  # hosts whose telemetry ends
    silent_from_s: float = 0.0
    needs_paths: bool = False


Break = Callable[[Random, Place], Broken]


def _expected(at_s: float, fault_class: FaultClass, component: str, **more: object) -> Expectation:
    fields = {"class": fault_class, "component": component, "after_s": at_s, "within_s": _EVER_S}
    return Expectation.model_validate(fields | more)


def _wire(effect: str, fault_class: FaultClass, what: str) -> Break:
    """Return what breaks a NIC, or the cable to its leaf, in one direction or both."""

    def draw(random: Random, place: Place) -> Broken:
        host, nic = int(random.integers(place.cluster.hosts)), int(random.integers(place.cluster.nics_per_host))
        name = nic_name(f"h{host}", f"eth{nic}")
        cable = next(link_name(link) for link in build_topology(place.cluster).links if link.a == f"h{host}/eth{nic}")
        side = pick(random, ("tx", "rx", None)) if what == "nic" and "%" in effect else None
        part, other = (name, cable) if what == "nic" else (cable, name)
        at_s, amount = place.onset_s(random), f"{random.uniform(12, 75):.0f}"
        line = f"at {at_s} s fail {part} {side + ' ' if side else ''}{effect.format(amount)}"
        right = _expected(at_s, fault_class, part, side=side, also_right=(other,))
        return Broken((line, *_heal(random, place, at_s, part)), (right,), f"h{host}")

    return draw


def _heal(random: Random, place: Place, at_s: float, part: str) -> tuple[str, ...]:
    """Return that it is over, now and then, after a while."""
    lasts_s = max(10 * place.step_s, 8.0, 0.3 * place.duration_s)  # shorter ones are a note at most
    is_due = random.random() < 0.15 and at_s + lasts_s < place.duration_s
    return (f"at {at_s + lasts_s:.2f} s heal {part}",) if is_due else ()


def _between_switches(random: Random, place: Place) -> Broken:
    topology = build_topology(place.cluster)
    nics = {f"{host.id}/{nic.id}" for host in topology.hosts for nic in host.nics}
    link = pick(random, [link for link in topology.links if link.a not in nics])
    at_s = place.onset_s(random)
    line = f"at {at_s} s fail {link_name(link)} to {random.uniform(4, 25):.0f} %"
    return Broken((line,), (_expected(at_s, "comm_slow", link_name(link)),), needs_paths=True)


def _leaf(random: Random, place: Place) -> Broken:
    leaves = [switch.id for switch in build_topology(place.cluster).switches if "leaf" in switch.id]
    name, at_s = f"switch:{pick(random, leaves)}", place.onset_s(random)
    line = f"at {at_s} s fail {name} to {random.uniform(15, 60):.0f} %"
    return Broken((line,), (_expected(at_s, "comm_slow", name),), needs_paths=True)


def _slow_gpu(random: Random, place: Place) -> Broken:
    host, gpu = int(random.integers(place.cluster.hosts)), int(random.integers(place.cluster.gpus_per_host))
    name, at_s = f"gpu:h{host}/{gpu}", place.onset_s(random)
    rarely = f" in {random.uniform(15, 60):.0f} % of steps" if random.random() < 0.15 else ""
    line = f"at {at_s} s fail {name} to {random.uniform(40, 88):.0f} %{rarely}"
    also = _only_rank(place, host)
    right = _expected(at_s, "noncomm_slow", name, also_right=also, also_class=("software",))
    return Broken((line, *_heal(random, place, at_s, name)), (right,), f"h{host}")


def _only_rank(place: Place, host: int) -> tuple[str, ...]:
    """Return the names that a host, its GPU and its rank share where there is one of each."""
    return (f"host:h{host}", f"gpu:h{host}/0", f"rank:{host}") if place.cluster.gpus_per_host == 1 else ()


def _slow_host(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), place.onset_s(random)
    name, late_ms = host_name(f"h{host}"), 1e3 * place.step_s * random.uniform(0.1, 1.0)
    rarely = f" in {random.uniform(40, 90):.0f} % of steps" if random.random() < 0.3 else ""
    line = f"at {at_s} s fail {name} late {late_ms:.1f} ms{rarely}"
    also = {"also_right": _only_rank(place, host), "also_class": ("software",)}
    right = _expected(at_s, "noncomm_slow", name, **also)
    return Broken((line, *_heal(random, place, at_s, name)), (right,), f"h{host}")


def _starved(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), place.onset_s(random)
    name, line = host_name(f"h{host}"), f"at {at_s} s fail host:h{host} starved to {random.uniform(4, 30):.0f} %"
    also = {"also_right": _only_rank(place, host), "also_class": ("software",)}
    return Broken((line,), (_expected(at_s, "noncomm_slow", name, **also),), f"h{host}")


def _process(effect: str, fault_class: FaultClass, *also_class: FaultClass) -> Break:
    def draw(random: Random, place: Place) -> Broken:
        gpus = place.cluster.gpus_per_host
        rank, at_s = int(random.integers(place.cluster.hosts * gpus)), max(place.onset_s(random), 0.01)
        host, gpu = divmod(rank, gpus)
        part = f"gpu:h{host}/{gpu}" if effect == "stuck" else f"rank:{rank}"
        names = (f"rank:{rank}", f"gpu:h{host}/{gpu}") + (
            () if effect == "stuck" and gpus > 1 else (f"host:h{host}",)
        )
        right = _expected(at_s, fault_class, names[0], also_right=names[1:], also_class=also_class)
        return Broken((f"at {at_s} s fail {part} {effect}",), (right,), f"h{host}")

    return draw


def _mistake(random: Random, place: Place) -> Broken:
    rank = int(random.integers(place.cluster.hosts * place.cluster.gpus_per_host))
    at_s = max(place.onset_s(random), 0.01)
    right = _expected(at_s, "software", f"job:{JOB}", also_right=(f"rank:{rank}",))
    return Broken((f"at {at_s} s fail rank:{rank} mismatched",), (right,), f"h{rank // place.cluster.gpus_per_host}")


def _gone(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), max(place.onset_s(random), 0.01)
    right = _expected(at_s, "crash", f"host:h{host}", also_right=_only_rank(place, host))
    return Broken((f"at {at_s} s fail host:h{host} gone",), (right,), f"h{host}")


def _telemetry(random: Random, place: Place) -> Broken:
    """Return that the telemetry of some hosts ends while the job goes on; of most of them, that is to be told."""
    hosts, at_s = place.cluster.hosts, max(place.onset_s(random), 0.01)
    silent = random.permutation(hosts)[: int(random.integers(1, hosts + 1))]
    is_told = hosts > len(silent) > hosts / 2 and len(silent) > 1
    right = (_expected(at_s, "telemetry_lost", f"job:{JOB}"),) if is_told else ()
    return Broken((), right, silent=tuple(f"h{host}" for host in silent), silent_from_s=at_s)


KINDS: Mapping[str, tuple[Break, float]] = {
    "healthy": (lambda random, place: Broken(), 9.0),
    "slow NIC": (_wire("to {} %", "comm_slow", "nic"), 4.0),
    "slow host link": (_wire("to {} %", "comm_slow", "link"), 1.5),
    "slow leaf-spine link": (_between_switches, 1.0),
    "slow leaf": (_leaf, 1.0),
    "slow GPU": (_slow_gpu, 3.0),
    "late host": (_slow_host, 2.0),
    "starved host": (_starved, 1.0),
    "NIC down": (_wire("down", "comm_hang", "nic"), 1.0),
    "link down": (_wire("down", "comm_hang", "link"), 1.0),
    "stuck kernel": (_process("stuck", "noncomm_hang"), 1.5),
    "absent rank": (_process("absent", "noncomm_hang"), 1.0),
    "stopped process": (_process("stopped", "noncomm_hang"), 1.0),
    "killed process": (_process("killed", "crash", "noncomm_hang"), 1.0),
    "host gone": (_gone, 1.0),
    "mismatch": (_mistake, 1.0),
    "telemetry ends": (_telemetry, 1.5),
}


@dataclass(frozen=True)
class Chain:
    """What the chain from the hosts to the store does to rows; times are seconds of the scenario."""

    seed: int
    ends_s: Mapping[str, float] = field(default_factory=dict)  # by host: nothing later arrives
    untold: frozenset[str] = frozenset()  # hosts of which nothing arrives at all
    coarse: frozenset[str] = frozenset()  # hosts that record operations, and no waits of transfers
    lost_batches: float = 0.0  # share of the seconds of a host and table
    lost_rows: float = 0.0  # share of sampled rows
    tables: frozenset[str] = frozenset()  # that are missing
    columns: frozenset[tuple[str, str]] = frozenset()  # that nobody fills
    fuses: bool = False  # two NICs are one device to NCCL
    hole_every_s: float | None = None  # the governor looks away so often

    def pass_on(self, name: str, rows: pa.Table, start_ns: int) -> pa.Table:
        """Return what arrives of some rows of a table."""
        if name in self.tables or not rows.num_rows:
            return rows.slice(0, 0)
        rows = rows.filter(pa.array(self._arrives(name, rows, start_ns)))
        rows = self._without_detail(name, rows)
        rows = self._without_times(name, rows, start_ns)
        for table, column in sorted(self.columns):
            rows = _forget(rows, column, np.ones(rows.num_rows, bool)) if table == name else rows
        return _fuse(rows) if self.fuses and "nic" in rows.column_names and name != "nic_counters" else rows

    def _arrives(self, name: str, rows: pa.Table, start_ns: int) -> Numbers:
        hosts = np.array(rows["host"].to_pylist(), object)
        sent_s = _seconds(rows, _KNOWN_AT.get(name, TABLE_BY_NAME[name].time), start_ns)
        arrives = sent_s <= np.array([self.ends_s.get(host, np.inf) for host in hosts])
        arrives &= ~np.isin(hosts, sorted(self.untold))
        if name in _KEPT:
            return np.asarray(arrives)
        which, second = _codes(hosts), np.floor(sent_s).astype(np.int64)
        arrives &= _chance(self.seed, name, which, second) >= self.lost_batches
        if name in ("collectives", "transfers", "step_samples"):
            numbers = [np.asarray(rows[column]).astype(np.int64) for column in ("rank", "seq")]
            arrives &= _chance(self.seed, name, which, *numbers, _seconds(rows, _WHEN[name], 0)) >= self.lost_rows
        return np.asarray(arrives)

    def _without_detail(self, name: str, rows: pa.Table) -> pa.Table:
        """Leave out what hosts with less detail do not see."""
        coarse = np.isin(np.array(rows["host"].to_pylist(), object), sorted(self.coarse))
        if not coarse.any():
            return rows
        if name == "step_samples":
            return rows.filter(pa.array(~coarse))
        for column in {*_WAITS, "head_peer", "head_channel"} & set(rows.column_names):
            rows = _forget(rows, column, coarse)
        for column, value in (("detail", "ops"), ("head_state", "unknown")):
            if column in rows.column_names:
                rows = _replace(rows, column, coarse, value)
        return rows

    def _without_times(self, name: str, rows: pa.Table, start_ns: int) -> pa.Table:
        """Mark what falls into a hole of the governor, which looks away on one rank after the other."""
        if self.hole_every_s is None or name not in ("collectives", "transfers", "step_samples", "progress"):
            return rows
        when_s = _seconds(rows, _WHEN.get(name, "ts_ns"), start_ns)
        in_hole = (when_s - _APART_S * np.asarray(rows["rank"])) % self.hole_every_s < _HOLE_S
        if name in ("transfers", "step_samples"):
            return rows.filter(pa.array(~in_hole))
        rows = _replace(rows, "untimed", in_hole, True)
        if name == "collectives":
            rows = _replace(_forget(_forget(rows, "start_ns", in_hole), "end_ns", in_hole), "clock", in_hole, "none")
        return rows


def fused_name(nic: str) -> str:
    """Return the name that NCCL's log gives the device which a NIC is a part of.

    >>> fused_name("eth3")
    'eth2,eth3'
    """
    first = int(nic.removeprefix("eth")) // 2 * 2
    return f"eth{first},eth{first + 1}"


def _fuse(rows: pa.Table) -> pa.Table:
    names = rows["nic"].combine_chunks().dictionary_encode()
    fused = pa.array([name and fused_name(name) for name in names.dictionary.to_pylist()], pa.string())
    return rows.set_column(rows.column_names.index("nic"), "nic", fused.take(names.indices).cast(rows["nic"].type))


def _seconds(rows: pa.Table, column: str | None, start_ns: int) -> Numbers:
    """Return when rows were made, in seconds of the scenario; at its beginning, where nobody says."""
    if column is None or column not in rows.column_names:
        return np.zeros(rows.num_rows)
    return (np.asarray(pc.fill_null(rows[column].cast(pa.int64()), start_ns)) - start_ns) / NS_PER_S


def _replace(rows: pa.Table, column: str, where: Numbers, value: object) -> pa.Table:
    kind = rows[column].type
    changed = pc.if_else(pa.array(where), pa.scalar(value, kind), rows[column].combine_chunks())
    return rows.set_column(rows.column_names.index(column), rows.schema.field(column), changed)


def _forget(rows: pa.Table, column: str, where: Numbers) -> pa.Table:
    return _replace(rows, column, where, None)


def _codes(names: Numbers) -> Numbers:
    known = {name: zlib.crc32(str(name).encode()) for name in set(names.tolist())}
    return np.array([known[name] for name in names.tolist()], np.int64)


def _chance(seed: int, name: str, *numbers: Numbers) -> Numbers:
    """Return a number from 0 to 1 for each row, as good as random and the same for the same numbers (splitmix64)."""
    mixed = np.full(len(numbers[0]), seed ^ zlib.crc32(name.encode()), np.uint64)
    with np.errstate(over="ignore"):
        for number in numbers:
            mixed = (mixed ^ np.asarray(number, np.float64).view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return mixed.astype(np.float64) / 2.0**64
