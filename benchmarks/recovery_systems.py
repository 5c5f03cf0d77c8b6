"""Ways to recover and rates of faults that are compared in simulation; recovery_fleet.py says what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.recovery.allocation.jobs import Ways

_MINUTE_S = 60.0
Kind = Literal["lost", "killed", "exception", "hang"]
OTHERS: tuple[Kind, ...] = ("killed", "exception", "hang")  # equally often: the traces do not tell them apart


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what happens, per host and day."""

    name: str
    days: float
    lost: float  # hosts that must be repaired
    others: float  # faults that leave the hardware healthy
    repair_days: tuple[float, float]
    hosts: int = 16
    jobs: int = 6


# 10 lost hosts and 33 other faults in 8 weeks on 16 hosts; 26 and 80 in one week.
TRACE_A = Faults("trace-a", 56.0, 10 / 56 / 16, 33 / 56 / 16, (1.0, 7.0))
TRACE_B = Faults("trace-b", 7.0, 26 / 7 / 16, 80 / 7 / 16, (1.0 / 20, 7.0 / 20))
# Meta's RSC-1: 6.50 faults per 1,000 node-days, each taken to need a repair, and as many others.
META = Faults("Meta RSC-1", 30.0, 0.0065, 0.0065, (1.0, 7.0), hosts=64, jobs=12)


@dataclass(frozen=True, slots=True)
class System:
    """One way to recover."""

    name: str
    seen_s: Mapping[Kind, float]  # until a fault is noticed
    ways: Ways
    queue_s: float = 0.0  # before anything starts
    plans: bool = False  # shares hosts among jobs anew at every event; else a job waits for its lost host
    spares: int = 0


_SLOWLY: Mapping[Kind, float] = {"lost": 6.0, "killed": 2.0, "exception": 30 * _MINUTE_S, "hang": 30 * _MINUTE_S}
# Detection of Unicron's table 2; Lockstep's own on real processes is in the same range (results.md, Analyzer).
_FAST: Mapping[Kind, float] = {"lost": 5.6, "killed": 1.8, "exception": 0.3, "hang": 30.0}
_RESTART = Ways(restart_s=14 * _MINUTE_S, lost_work_s=15 * _MINUTE_S, save_s=_MINUTE_S)
_IN_JOB = replace(_RESTART, peer_s=60.0)  # communicators anew and a copy of the state; at most one step is lost

RESTART = System("restart from checkpoint", _SLOWLY, _RESTART, queue_s=9 * _MINUTE_S)
HOT_SPARES = System("hot spares", _FAST, _IN_JOB, spares=1)
LOCKSTEP = System("Lockstep, restarting", _FAST, _RESTART, plans=True)
IN_JOB = System("Lockstep, in the job", _FAST, _IN_JOB, plans=True)
ABLATION = (
    replace(RESTART, name="restart + detection", seen_s=_FAST),
    replace(RESTART, name="restart + plan", plans=True),
    replace(RESTART, name="restart + transition", ways=_IN_JOB, queue_s=0.0),
)
