"""The recovery planner's claims: the optimum over all jobs in time, schedules at their bound, work that is saved."""

from benchmarks.figures import Figure, Note
from benchmarks.recovery_allocation import measure_allocation
from benchmarks.recovery_fleet import measure_fleet
from benchmarks.recovery_peers import measure_peers
from benchmarks.recovery_recycle import measure_recycle
from benchmarks.recovery_replay import measure_replay


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of planning, of schedules, and of fleets under faults."""
    return (
        *measure_allocation(quick, note),
        *measure_recycle(quick, note),
        *measure_peers(quick, note),
        *measure_fleet(quick, note),
        *measure_replay(quick, note),
    )
