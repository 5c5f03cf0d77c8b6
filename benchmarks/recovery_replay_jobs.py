"""The jobs of a replay: grids of pipelines and stages, a node per worker, and how fast they are with nodes missing.

Work is counted in nodes: a whole job does as much as it has nodes, and one whose step takes twice as long does half.
The global batch stays what it was, so fewer pipelines have more micro-batches each, and a longer step.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from planner.recovery.allocation.jobs import Ways
from planner.recovery.recycle.bounds import closed_form
from planner.recovery.recycle.schedule import Shape, Worker, unit_times


@dataclass(frozen=True)
class PipelineJob:
    """A job as it is when nothing is missing."""

    id: str
    stages: int
    pipelines: int
    micro_batches: int  # per pipeline and step

    @property
    def nodes(self) -> int:
        return self.stages * self.pipelines

    def work(self, pipelines: int, missing: int = 0) -> float:
        """Return what it does on so many pipelines of which some nodes are missing, whose peers do their work.

        Failures are spread over the stages (parameters are moved for that), as re-routing wants them.
        """
        return _work(self, pipelines, missing)

    def work_on_all_but(self, missing: int) -> float:
        """Return what it does with all pipelines and so many nodes missing."""
        return self.work(self.pipelines, missing)


# 320 of 400 nodes, so that up to 80 can be spares. Shapes of ReCycle's and Oobleck's evaluations, one large job among
# smaller ones.
FLEET = (
    PipelineJob("a", 8, 16, 32),
    PipelineJob("b", 8, 8, 32),
    *(PipelineJob(name, 4, 8, 32) for name in "cd"),
    *(PipelineJob(name, 4, 4, 32) for name in "efgh"),
)
SPOT_JOB = PipelineJob("spot", 4, 8, 32)  # 32 nodes, as many as there ever were at once

# 14 minutes to start and 15 of work lost are Unicron's case (arXiv 2401.00134); 60 s to rebuild groups and copy state
# from a replica is the floor we set ourselves for a whole recovery; 10 s is the longest pause of Oobleck's artifact.
FLEET_WAYS = Ways(restart_s=840.0, lost_work_s=900.0, save_s=60.0, peer_s=60.0, drop_s=60.0, recycle_s=10.0)
# A smaller model: 83 s to restart GPT-2 and 10 s for a pause without one, both of Oobleck's artifact. That a restart
# loses no work besides is generous to those who restart.
SPOT_WAYS = Ways(restart_s=83.0, lost_work_s=0.0, save_s=0.0, peer_s=10.0, drop_s=10.0, recycle_s=10.0)


@lru_cache(maxsize=65_536)
def _work(job: PipelineJob, pipelines: int, missing: int) -> float:
    if pipelines < 1 or ceil(missing / job.stages) >= pipelines:
        return 0.0
    whole = closed_form(Shape(job.stages, job.pipelines, job.micro_batches), unit_times(job.stages), ())
    micro_batches = ceil(job.micro_batches * job.pipelines / pipelines)
    failed = [Worker(number // job.stages, number % job.stages) for number in range(missing)]
    step = closed_form(Shape(job.stages, pipelines, micro_batches), unit_times(job.stages), failed)
    return job.nodes * whole / step
