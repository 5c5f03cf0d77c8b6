"""The training steps of a job: when each began, how long it took, and which rank was the slowest."""

from pydantic import Field

from api.paging import Place
from api.reading.moments import show_moment
from lockstep.store.store import Store
from lockstep.verdict import Frozen

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


class TrainingStep(Frozen):
    """One training step of a job over all ranks that tell of it."""

    attempt: int = Field(ge=0)
    step: int = Field(ge=0)
    start_ns: int = Field(ge=0)
    end_ns: int = Field(ge=0)
    start_at: str | None = None
    step_s: float = Field(ge=0, description="of the slowest rank, in seconds")
    slowest_rank: int = Field(ge=0)
    ranks: int = Field(ge=0, description="that tell of this step")
    source: str = Field(description="told: by the job itself; period: found in its traffic")


def list_steps(store: Store, job: str, limit: int, after: Place | None = None) -> list[TrainingStep]:
    """Return steps, the newest first; `after` is (attempt, step) of the last one that is known already."""
    attempt, step = after or (_BEFORE_ALL, _BEFORE_ALL)
    rows = store.query(_STEPS, {"job": job, "attempt": attempt, "step": step, "most": limit}).to_pylist()
    return [TrainingStep(**row, start_at=show_moment(row["start_ns"])) for row in rows]
