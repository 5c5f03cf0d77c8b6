"""A small job of which a few ranks are watched."""

import pyarrow as pa

from analyzer.steps.history import StepHistory, find_before, find_newest
from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.window import Context, Window
from lockstep.records import Comm
from tests.analyzer.steps.traffic import T0
from tests.builders import SECOND, make, rows


def members(ranks: int = 2) -> pa.Table:
    """Return the communicator of all ranks, one rank a host."""
    return rows(
        *(make(Comm, host=f"h{rank}", comm=1, rank=rank, nranks=ranks, world_rank=rank) for rank in range(ranks))
    )


def roster(ranks: int = 2) -> Roster:
    return build_roster(members(ranks))


def look_at(
    end_ns: int = T0 + 60 * SECOND, attempt: int = 0, ranks: int = 2, period_ns: int | None = None
) -> Context:
    """Return an evaluation at the five seconds before a moment."""
    window, fresh_ns = Window(end_ns - 5 * SECOND, end_ns), end_ns - 2 * SECOND
    return Context("j1", attempt, window, fresh_ns, roster(ranks), None, period_ns=period_ns)


def step_time_ratio(history: StepHistory, since_ns: int | None = None) -> float | None:
    """Return the step time now over the usual one before a fault."""
    usual = find_before(history, since_ns)
    return None if usual is None else find_newest(history) / usual
