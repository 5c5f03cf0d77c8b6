"""Which jobs there are, how each is, since when and in which step, and the checkpoints it can go back to."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from api.dependencies import Page, SortKey, cut_sorted, show_timestamp
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import open_incidents
from lockstep.store.store import Store
from lockstep.verdict import Frozen, Incident
from planner.checkpoints.checkpoint import Catalogue, Checkpoint, newest_first
from planner.checkpoints.choose import CheckpointFolders

Condition = Literal["running", "slow", "hung", "crashed", "unseen", "ended"]
_ALIVE_NS = 120 * NS_PER_S  # as long as the analyzer looks back for signs of life
_DAY_NS = 86_400 * NS_PER_S
_Key = tuple[str, int]  # job and attempt
# The first that fits is said: who hangs is not slow any more.
_CONDITIONS: tuple[tuple[Condition, frozenset[str]], ...] = (
    ("crashed", frozenset({"crash"})),
    ("hung", frozenset({"comm_hang", "noncomm_hang"})),
    ("unseen", frozenset({"telemetry_lost"})),
    ("slow", frozenset({"comm_slow", "noncomm_slow", "global_slow", "software"})),
)
_KNOWN = """
SELECT job, attempt, max(attempts.ranks) AS ranks, uniqExactMerge(attempts.hosts) AS hosts,
       max(attempts.nccl_version) AS nccl_version,
       min(attempts.first_ns) AS first_ns, max(attempts.last_ns) AS last_ns
FROM attempts WHERE %(whose)s AND (job, attempt) > ({after_job:String}, {after_attempt:Int32}) AND %(which)s
GROUP BY job, attempt ORDER BY job, attempt LIMIT {most:UInt64}
"""
_LISTED = "arrayExists((a, b) -> a = job AND b = attempt, {jobs:Array(String)}, {attempts:Array(Int32)})"
# Progress is told every second, also of a job that hangs and finishes nothing.
_ALIVE = """
SELECT job, attempt, max(last) AS last_ns FROM (
    SELECT job, attempt, max(ts_ns) AS last FROM progress
    WHERE %(whose)s AND ts_ns >= {since:Int64} AND ts_ns <= {now:Int64} GROUP BY job, attempt
    UNION ALL
    SELECT job, attempt, max(ts_ns) AS last FROM op_stats
    WHERE %(whose)s AND ts_ns >= {since:Int64} AND ts_ns <= {now:Int64} GROUP BY job, attempt
) GROUP BY job, attempt
"""
# The newest by time, then it and those before by number: the key leads to them, and no day of rows is sorted.
_NEWEST_STEPS = """
SELECT job, attempt, argMax(steps.step, end_ns) AS step, quantileExact(0.5)(end_ns - start_ns) / 1e9 AS step_s
FROM steps WHERE start_ns >= {since:Int64} AND (job, attempt, steps.step) IN (
    SELECT job, attempt, arrayJoin(range(toUInt64(newest - least(newest, 15)), newest + 1)) FROM (
        SELECT job, attempt, argMax(step, end_ns) AS newest FROM steps
        WHERE job IN {jobs:Array(String)} AND start_ns >= {since:Int64} GROUP BY job, attempt
    )
) GROUP BY job, attempt
"""
_BEFORE_ALL = 2**63 - 1
# What was told in-band is better than what was found in the traffic; of one step there may be both. Which are on the
# page is read off the end of the table's order, so that a page costs the same after a day and after half a year.
_STEPS = """
SELECT attempt, step, argMax(start, is_told) AS start_ns, argMax(end, is_told) AS end_ns,
       argMax(slowest, is_told) AS slowest_rank, argMax(longest, is_told) / 1e9 AS step_s,
       argMax(n, is_told) AS ranks, if(max(is_told), 'told', 'period') AS source
FROM (SELECT attempt, step, source = 'told' AS is_told, min(start_ns) AS start, max(end_ns) AS end,
             argMax(world_rank, end_ns - start_ns) AS slowest, max(end_ns - start_ns) AS longest,
             uniqExact(world_rank) AS n
      FROM steps WHERE job = {job:String} AND (attempt, step) IN (
          SELECT DISTINCT attempt, step FROM steps
          WHERE job = {job:String}
            AND (attempt < {attempt:Int64} OR attempt = {attempt:Int64} AND step < {step:Int64})
          ORDER BY attempt DESC, step DESC LIMIT {most:UInt64})
      GROUP BY attempt, step, source)
GROUP BY attempt, step ORDER BY attempt DESC, step DESC LIMIT {most:UInt64}
"""


class Job(Frozen):
    """One attempt of a job, and how it is."""

    job: str
    attempt: int = Field(ge=0)
    condition: Condition
    because: str = Field("", description="the sentence of the verdict behind the condition; empty: there is none")
    ranks: int = Field(ge=0, description="of its largest communicator, seen or not")
    hosts: int = Field(ge=0)
    nccl_version: str | None = None
    first_ns: int = Field(ge=0, description="first sign of life")
    last_ns: int = Field(ge=0, description="last sign of life")
    first_at: str | None = None
    last_at: str | None = None
    step: int | None = Field(None, description="newest known training step")
    step_s: float | None = Field(None, ge=0, description="median of its newest steps in seconds")
    incidents: tuple[str, ...] = Field((), description="ids of its open incidents")


def list_jobs(
    store: Store,
    control: ControlDatabase,
    now_ns: int,
    limit: int,
    after: SortKey | None = None,
    job: str | None = None,
    conditions: Collection[Condition] = (),
) -> list[Job]:
    """Return attempts of jobs by name and number; `after` is (job, attempt) of the last one that is known already.

    With conditions only those that are so: who lives or has an incident is few, so the store looks up only them.
    """
    faults: dict[_Key, list[Incident]] = {}
    for incident in open_incidents(control, job):
        faults.setdefault((incident.job, incident.attempt), []).append(incident)
    alive = _read_alive(store, [job] if job is not None else None, now_ns) if conditions else {}
    whose, which, asked = _narrow(job, conditions, alive, faults)
    asked |= {"most": limit, **dict(zip(("after_job", "after_attempt"), after or ("", -1), strict=True))}
    rows = store.query(_KNOWN % {"whose": whose, "which": which}, asked).to_pylist()
    if not rows:
        return []
    names = sorted({row["job"] for row in rows})
    alive, steps = alive if conditions else _read_alive(store, names, now_ns), _read_steps(store, names, now_ns)
    return [_as_job(row, alive, steps, faults) for row in rows]


def find_job(store: Store, control: ControlDatabase, job: str, now_ns: int) -> Job:
    """Return the newest attempt of a job, or raise NotPresent."""
    attempts = list_jobs(store, control, now_ns, limit=100_000, job=job)
    if not attempts:
        raise NotPresent(f"the store knows no job {job!r}")
    return attempts[-1]


def judge_condition(is_alive: bool, faults: Iterable[Incident]) -> tuple[Condition, str]:
    """Return how a job is, and the sentence that says so."""
    known = list(faults)
    for condition, classes in _CONDITIONS:
        for fault in known:
            if fault.verdict.fault_class in classes:
                return condition, fault.verdict.reason
    return ("running" if is_alive else "ended"), ""


class TrainingStep(Frozen):
    """One training step of a job over all ranks that tell of it."""

    attempt: int = Field(ge=0)
    step: int = Field(ge=0)
    start_ns: int = Field(ge=0)
    end_ns: int = Field(ge=0)
    start_at: str | None = None
    step_s: float = Field(ge=0, description="of the slowest rank, in seconds")
    slowest_rank: int = Field(ge=0)
    ranks: int = Field(ge=0, description="that report this step")
    source: str = Field(description="told: reported by the job itself; period: found in its traffic")


def list_steps(store: Store, job: str, limit: int, after: SortKey | None = None) -> list[TrainingStep]:
    """Return steps, the newest first; `after` is (attempt, step) of the last one that is known already."""
    attempt, step = after or (_BEFORE_ALL, _BEFORE_ALL)
    rows = store.query(_STEPS, {"job": job, "attempt": attempt, "step": step, "most": limit}).to_pylist()
    return [TrainingStep(**row, start_at=show_timestamp(row["start_ns"])) for row in rows]


class ShownCheckpoint(Frozen):
    """A checkpoint, and when it was saved as a person reads it."""

    checkpoint: Checkpoint
    saved_at: str | None = None
    seconds_ago: float


class Return(Frozen):
    """What going back to the newest good checkpoint takes."""

    path: str
    format: str
    repeats_s: float = Field(ge=0, description="work that is done again")
    load_s: float = Field(ge=0)
    convert_s: float = Field(ge=0)
    steps_lost: int | None = Field(None, description="from its step to the newest known one; None: one is not known")


class Checkpoints(Page[ShownCheckpoint]):
    """A page of a job's checkpoints, the newest first, and what all of them mean."""

    job: str
    folder: str
    back_to: Return | None = Field(None, description="None: no checkpoint is verified to be complete")
    next_save_s: float | None = Field(None, description="until the next is expected; None: unknown")
    remarks: tuple[str, ...] = ()


def read_checkpoints(
    folders: CheckpointFolders | None,
    job: str,
    now_ns: int,
    limit: int,
    after: SortKey | None,
    step: int | None = None,
) -> Checkpoints:
    """Return a page of a job's checkpoints; `step` is the newest that it has done."""
    if folders is None:
        raise NotPresent("planner.checkpoints is not set, so nobody knows where checkpoints are")
    catalogue = folders.catalogue(job, now_ns)
    found = sorted(catalogue.checkpoints, key=newest_first)
    page = cut_sorted(found, limit, after, sort_key)
    return Checkpoints(
        items=tuple(
            (ShownCheckpoint(checkpoint=each, saved_at=show_timestamp(each.saved_ns), seconds_ago=each.age_s(now_ns)))
            for each in page.items
        ),
        next=page.next,
        job=job,
        folder=catalogue.folder,
        back_to=_return(folders, catalogue, now_ns, step),
        next_save_s=folders.next_save_s(job, now_ns),
        remarks=catalogue.remarks,
    )


def sort_key(checkpoint: Checkpoint) -> SortKey:
    """Return where a checkpoint stands in the list: the newest step first, those without a step last."""
    is_unknown, step, saved, path = newest_first(checkpoint)
    return int(is_unknown), step, saved, path


def _narrow(
    job: str | None, conditions: Collection[Condition], alive: Collection[_Key], faults: Mapping[_Key, list[Incident]]
) -> tuple[str, str, dict[str, object]]:
    """Return which rows to read, which attempts to keep of them, and the values of both.

    Ended is who is neither alive nor in trouble: then the others are left out, else they are all that is looked up.
    """
    whose = "job = {job:String}" if job is not None else "true"
    asked: dict[str, object] = {"job": job or ""}
    if not conditions:
        return whose, "true", asked
    others = {key: judge_condition(key in alive, faults.get(key, ()))[0] for key in {*alive, *faults}}
    has_ended = "ended" in conditions
    keys = sorted(key for key, condition in others.items() if (condition in conditions) != has_ended)
    listed: dict[str, object] = {"jobs": [name for name, _ in keys], "attempts": [number for _, number in keys]}
    if has_ended:
        return whose, f"NOT {_LISTED}", asked | listed
    return f"{whose} AND job IN {{jobs:Array(String)}}", _LISTED, asked | listed


def _as_job(
    row: dict[str, Any],  # Any: columns of several types
    alive: Mapping[_Key, int],
    steps: Mapping[_Key, tuple[int, float]],
    faults: Mapping[_Key, Sequence[Incident]],
) -> Job:
    key = (row["job"], row["attempt"])
    row["last_ns"] = max(row["last_ns"], alive.get(key, 0))
    condition, because = judge_condition(key in alive, faults.get(key, ()))
    step, step_s = steps.get(key, (None, None))
    return Job(
        **row,
        condition=condition,
        because=because,
        first_at=show_timestamp(row["first_ns"]),
        last_at=show_timestamp(row["last_ns"]),
        step=step,
        step_s=step_s,
        incidents=tuple(incident.id for incident in faults.get(key, ())),
    )


def _read_alive(store: Store, jobs: list[str] | None, now_ns: int) -> dict[_Key, int]:
    """Return the last sign of life of those that gave one lately; None asks for all jobs."""
    whose = "true" if jobs is None else "job IN {jobs:Array(String)}"
    asked = {"jobs": jobs or [], "since": max(now_ns - _ALIVE_NS, 0), "now": now_ns + NS_PER_S}
    rows = store.query(_ALIVE % {"whose": whose}, asked)
    return {(row["job"], row["attempt"]): row["last_ns"] for row in rows.to_pylist()}


def _read_steps(store: Store, jobs: list[str], now_ns: int) -> dict[_Key, tuple[int, float]]:
    """Return the newest step of each and the median of its newest step times."""
    rows = store.query(_NEWEST_STEPS, {"jobs": jobs, "since": max(now_ns - _DAY_NS, 0)})
    return {(row["job"], row["attempt"]): (row["step"], row["step_s"]) for row in rows.to_pylist()}


def _return(folders: CheckpointFolders, catalogue: Catalogue, now_ns: int, step: int | None) -> Return | None:
    resume = folders.newest(str(catalogue.job), None, now_ns)
    if resume is None:
        return None
    saved = next((each.step for each in catalogue.complete if each.path == resume.path), None)
    return Return(
        path=resume.path,
        format=resume.form,
        repeats_s=resume.age_s,
        load_s=resume.load_s,
        convert_s=resume.convert_s,
        steps_lost=max(step - saved, 0) if step is not None and saved is not None else None,
    )
