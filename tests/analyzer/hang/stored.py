"""Records in a store, and an evaluation at the job they are of."""

from typing import Any

from analyzer.hang.facts import HangMemory, HangOptions, ProgressFacts
from analyzer.hang.hangs import find_hangs
from analyzer.hang.reading import read_progress
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Finding, Window
from lockstep.records import Comm, Progress
from lockstep.store.store import Store
from tests.builders import SECOND, T0, make


def look_at(store: Store, end_ns: int, job: str = "j1", period_ns: int | None = SECOND) -> Context:
    window = Window(end_ns - 5 * SECOND, end_ns + 1)
    return Context(job, 0, window, end_ns, read_roster(store, job, 0), None, frozenset(), period_ns)


def read(store: Store, end_ns: int = T0, **told: Any) -> ProgressFacts:
    return read_progress(store, look_at(store, end_ns, **told))


def find(store: Store, end_ns: int = T0, **told: Any) -> list[Finding]:
    context = look_at(store, end_ns, **told)
    return find_hangs(read_progress(store, context), HangMemory(), context, HangOptions())[0]


def member(rank: int, **told: Any) -> Comm:
    return make(Comm, host=f"h{rank}", comm=1, rank=rank, world_rank=rank, nranks=2, nnodes=2, **told)


def progress(rank: int, at_s: float, counts: tuple[int, int, int], **told: Any) -> Progress:
    """How far a rank had come at a moment, counted in seconds from T0."""
    usual = dict(zip(("enqueued", "started", "done"), counts, strict=True)) | {"host": f"h{rank}", "rank": rank}
    return make(Progress, comm=1, **usual | {"ts_ns": T0 + round(at_s * SECOND)} | told)
