"""How often nodes fail here: faults that stopped a job, over the days for which nodes were watched."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import list_incidents
from lockstep.store.store import Store
from planner.recovery.allocation.nodes import estimate_failure_rates
from planner.recovery.checkpoints.intervals import FailureRate, find_failure_rate
from planner.recovery.components import node_of
from planner.recovery.situation import STANDSTILL

# One look a day is enough to tell for how many days a host was watched, and spares reading a month of heartbeats.
_WATCHED = """
SELECT host, uniqExact(intDiv({end:Int64} - ts_ns, {day:Int64})) AS days FROM agents WHERE WINDOWS
GROUP BY host ORDER BY host
"""
_DAYS = 30
_DAY_NS = 86_400 * NS_PER_S
_LOOK_NS = 120 * NS_PER_S  # of each day
_KEEP_S = 3600.0  # rates of rare events change slowly
_LEAST_NODE_DAYS = 30.0  # fewer, and one failure more or less would change everything
_MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of failures; nothing where nodes were not watched for long enough."""

    rate: FailureRate | None = None
    by_node: Mapping[str, float] = field(default_factory=dict)  # a day


class EvidenceReader:
    """Answers with how often nodes fail, read again once an hour."""

    def __init__(self, store: Store | None, control: ControlDatabase) -> None:
        self._store, self._control = store, control
        self._kept, self._read_ns = Evidence(), 0

    def read(self, now_ns: int) -> Evidence:
        """Return the failures of the last month."""
        if self._store is not None and now_ns - self._read_ns >= _KEEP_S * NS_PER_S:
            days = _read_days(self._store, now_ns)
            self._kept, self._read_ns = find_evidence(self._count(days, now_ns - _DAYS * _DAY_NS), days), now_ns
        return self._kept

    def _count(self, days: Mapping[str, float], since_ns: int) -> Counter[str]:
        found = list_incidents(self._control, limit=_MOST_INCIDENTS)
        verdicts = [each.verdict for each in found if each.opened_ns >= since_ns]
        stopped = [each.component for each in verdicts if each.fault_class in STANDSTILL]
        hosts = frozenset(days)
        return Counter(node for part in stopped if (node := node_of(part, hosts)) in hosts)


def _read_days(store: Store, now_ns: int) -> dict[str, float]:
    """Return for how many of the last days each host was watched."""
    ends = [now_ns - day * _DAY_NS for day in range(_DAYS)]
    windows = " OR ".join(f"(ts_ns > {end - _LOOK_NS} AND ts_ns <= {end})" for end in ends)
    rows = store.query(_WATCHED.replace("WINDOWS", windows), {"end": now_ns, "day": _DAY_NS}).to_pylist()
    return {str(row["host"]): float(row["days"]) for row in rows}


def find_evidence(failures: Mapping[str, int], days: Mapping[str, float]) -> Evidence:
    """Return the rates of nodes that were watched for so many days each."""
    watched = sum(days.values())
    if watched < _LEAST_NODE_DAYS:
        return Evidence()
    return Evidence(find_failure_rate(sum(failures.values()), watched), estimate_failure_rates(failures, days))
