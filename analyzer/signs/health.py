"""What GPUs say of their own health, as signs for or against them, their NVLink and their PCIe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import Context
from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.signs.growth import SPANS_SQL, count_growth, moments, read_growth, readings_sql
from analyzer.signs.signs import HardFact, Sign
from lockstep.store.store import Store
from lockstep.topology import gpu_name


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a counter of a GPU means; weights are reasoned from that, because nobody has measured them."""

    name: str
    part: str  # kind of the component it speaks of
    weight: float
    what: str


_RULES = (
    _Rule("nvlink_errors", "nvlink", 3.0, "counted errors on its NVLinks"),
    _Rule("pcie_replays", "pcie", 2.5, "had to repeat PCIe packets"),
    # Corrected in passing; many of them come before an uncorrected one, but they slow nothing.
    _Rule("ecc_sbe", "gpu", 0.5, "corrected memory errors"),
)
# Reasons for a lowered clock as NVML names them. Heat and a power brake are faults of the GPU or of its surroundings;
# a power cap is how a busy GPU runs, and idle ones are meant to be slow.
_THROTTLES = {
    "hw_thermal_slowdown": 3.0,
    "sw_thermal_slowdown": 2.5,
    "hw_power_brake_slowdown": 2.5,
    "hw_slowdown": 2.5,
    "sw_power_cap": 0.2,
}
_SLOW_CLOCK, _SLOW_SHARE = 2.0, 0.9  # clocks of GPUs that do the same differ by a few percent
_FEWEST_PEERS = 4  # fewer, and the median is one of the suspects itself

_QUERY = (
    "SELECT host, gpu, minIf(sm_mhz, ts_ns >= {turn:Int64} AND position(throttle, 'idle') = 0) AS running_mhz, "
    "arrayStringConcat(groupUniqArrayArrayIf(splitByChar(',', throttle), ts_ns >= {turn:Int64}), ',') AS reasons, "
    + readings_sql([*(rule.name for rule in _RULES), "ecc_dbe"])
    + f", max(ts_ns) AS last_ns, {SPANS_SQL} FROM gpu_health WHERE {OF_HOSTS} "
    "AND ts_ns >= {back:Int64} AND ts_ns < {end:Int64} GROUP BY host, gpu ORDER BY host, gpu"
)


def read_health(store: Store, context: Context) -> pa.Table:
    """Return one row per GPU of the job's hosts: why its clock was lowered, and how its counters grew."""
    return store.query(_QUERY, {"hosts": list_hosts(context.roster.hosts), **moments(context)})


def judge_health(rows: pa.Table) -> Iterator[Sign]:
    """Yield what the rows say for or against GPUs and their connections."""
    names = list(zip(rows["host"].to_pylist(), rows["gpu"].to_pylist(), strict=True))
    for number, rule in enumerate(_RULES):
        growth = read_growth(rows, number)
        for row in np.flatnonzero(growth.strength).tolist():
            host, gpu = names[row]
            what = f"{gpu_name(host, gpu)} {rule.what} ({int(growth.now[row])})"
            evidence = {"kind": "gpu_counter", "counter": rule.name, "grew_by": int(growth.now[row]), "what": what}
            yield Sign(f"{rule.part}:{host}/{gpu}", float(growth.strength[row]) * rule.weight, evidence)
    for (host, gpu), reasons in zip(names, rows["reasons"].to_pylist(), strict=True):
        yield from _throttled(gpu_name(host, gpu), reasons)
    yield from _slow_clocks(names, rows["running_mhz"])


def find_uncorrected(rows: pa.Table) -> Iterator[HardFact]:
    """Yield the GPUs that met memory errors beyond correction: whatever ran on them is lost."""
    grown, _ = count_growth(rows, len(_RULES))
    for row in np.flatnonzero(grown > 0).tolist():
        host, gpu, moment = (rows[name][row].as_py() for name in ("host", "gpu", "last_ns"))
        name = gpu_name(host, gpu)
        reason = f"{name} met {int(grown[row])} memory errors that cannot be corrected; it needs a reset or a repair"
        evidence: dict[str, Any] = {"kind": "gpu_counter", "counter": "ecc_dbe", "grew_by": int(grown[row])}
        yield HardFact(moment, "crash", name, reason, evidence)


def _throttled(name: str, reasons: str) -> Iterator[Sign]:
    for reason in filter(None, reasons.split(",")):
        if weight := _THROTTLES.get(reason.strip(), 0.0):
            evidence = {"kind": "gpu_health", "throttle": reason, "what": f"{name} lowered its clock ({reason})"}
            yield Sign(name, weight, evidence)


def _slow_clocks(names: list[tuple[str, int]], clocks: pa.ChunkedArray) -> Iterator[Sign]:
    mhz = np.asarray(pc.fill_null(clocks, 0)).astype(np.float64)
    running = mhz[mhz > 0]  # idle GPUs have none
    if len(running) < _FEWEST_PEERS:
        return
    usual = float(np.median(running))
    for row in np.flatnonzero((mhz > 0) & (mhz < _SLOW_SHARE * usual)).tolist():
        name = gpu_name(*names[row])
        what = f"{name} runs at {mhz[row]:.0f} MHz, others at {usual:.0f}"
        yield Sign(name, _SLOW_CLOCK, {"kind": "gpu_health", "sm_mhz": mhz[row], "usual_mhz": usual, "what": what})
