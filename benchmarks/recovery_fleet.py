"""A fleet of jobs under faults, in simulation: what each way to recover makes of the same history of faults.

Unicron's comparison (arXiv 2401.00134, section 7): 16 hosts of 8 GPUs, six jobs, faults as a Poisson process at the
rates of its two traces, and the weighted throughput of all jobs summed over time. Sizes and weights of its jobs are
not known, so they are drawn anew for every seed, and no job gets more than one and a half equal shares; its repair
times are not known either: one to seven days at the low rate, and scaled with the rate at the high one.

- Restart: what Unicron measured of Megatron. A fault that only a timeout shows is seen after 30 minutes; then 9
  minutes in the queue, 14 for processes and CUDA, and 15 of work done again. A lost host is waited for.
- Hot spares: as in-job restart does it. Some hosts stay idle; faults are seen as fast as Lockstep sees them, a
  restart takes as long as Lockstep's own in-job one, and without a spare the job waits for its host.
- Lockstep, restarting: faults are seen in seconds, the plan over all jobs says how many hosts each has, and jobs
  start again from their checkpoint, for which nobody queues.
- Lockstep, in the job: the same, where jobs take their state from live replicas.

Everything else is the same for all, and at zero faults so is the result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.figures import Figure, Note
from benchmarks.recovery_fleet_run import simulate
from benchmarks.recovery_systems import (
    ABLATION,
    HOT_SPARES,
    IN_JOB,
    LOCKSTEP,
    META,
    RESTART,
    TRACE_A,
    TRACE_B,
    Faults,
    System,
)

FIRST_SEED = 1_000  # of those that score; those below are for trying things out
_GOALS = {"trace-a": 1.2, "trace-b": 1.9}  # what Unicron's paper tells of itself


def measure_fleet(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return what each way to recover is worth beside restarting, at each rate of faults."""
    seeds = range(FIRST_SEED, FIRST_SEED + (3 if quick else 30))
    figures = [_measure_without_faults(seeds)]
    for faults in (TRACE_A, TRACE_B, META):
        note(f"a fleet under faults: {faults.name}, {len(seeds)} seeds")
        figures += _measure_with(faults, seeds)
    return tuple(figures)


def _measure_without_faults(seeds: Sequence[int]) -> Figure:
    calm = replace(TRACE_A, name="no faults", lost=0.0, others=0.0)
    ((_, ratio, _),) = compare((IN_JOB,), calm, seeds[:3])
    return Figure("work at no faults over restarting", ratio, "ratio", 1.0, 1.0)


def _measure_with(faults: Faults, seeds: Sequence[int]) -> Iterator[Figure]:
    """Yield a figure per system; Lockstep must be ahead of restarting, which is 1, and of hot spares."""
    spares = 1.0
    for system, ratio, half in compare((HOT_SPARES, LOCKSTEP, IN_JOB, *ABLATION), faults, seeds):
        spares = max(ratio, 1.0) if system is HOT_SPARES else spares
        yield Figure(
            f"{faults.name}: {system.name}",
            ratio,
            "of restarting",
            floor=spares if system in (LOCKSTEP, IN_JOB) else None,
            goal=_GOALS.get(faults.name) if system is IN_JOB else None,
            reference=f"± {half:.3f} (95 %)",
        )


def compare(systems: Sequence[System], faults: Faults, seeds: Sequence[int]) -> Iterator[tuple[System, float, float]]:
    """Yield for each system its work over that of restarting, and half of the 95 % interval of that, over seeds."""
    against = np.array([simulate(RESTART, faults, seed) for seed in seeds])
    for system in systems:
        ratios = np.array([simulate(system, faults, seed) for seed in seeds]) / against
        yield system, float(ratios.mean()), float(1.96 * ratios.std(ddof=1) / np.sqrt(len(seeds)))
