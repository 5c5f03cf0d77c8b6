"""What the planner can be told: the section [planner] of the settings file."""

from typing import Any

from pydantic import Field

from lockstep.decision import Action, Mode
from lockstep.sections import Listen, Section


class ModelHint(Section):
    """The size of a transformer and of its batch, from which its work by nodes is modelled."""

    parameters: float = Field(gt=0, description="such as 7e9")
    layers: int = Field(ge=1, description="that pipeline stages divide")
    hidden: int = Field(ge=1, description="width of a layer")
    sequence: int = Field(ge=1, description="tokens of a sequence")
    global_batch: int = Field(ge=1, description="sequences of a step")
    micro_batch: int = Field(1, ge=1, description="sequences of a micro-batch")


class JobHints(Section):
    """What a site says of a job beforehand: telemetry does not carry it."""

    tp: int = Field(1, ge=1, description="tensor-parallel GPUs")
    pp: int = Field(1, ge=1, description="pipeline stages")
    dp: int = Field(1, ge=1, description="replicas")
    micro_batches: int | None = Field(None, ge=1, description="per replica and step")
    weight: float = Field(1.0, gt=0, description="what its throughput is worth against that of other jobs")
    min_nodes: int = Field(1, ge=1, description="fewer, and it cannot run")
    throughput: dict[int, float] = Field(
        default_factory=dict,
        description="work a second by nodes, in one unit for all jobs; empty: as telemetry has seen it",
    )
    model: ModelHint | None = Field(
        None, description="its size, for node counts on which it was not seen; None: by its layout, or in proportion"
    )


class PlannerSettings(Section):
    """Turns incidents into decisions, and carries out those that may be."""

    listen: Listen = Field("127.0.0.1:8644", description="address of its health and metrics")
    paths: bool = Field(False, description="plan roads for the flows of all jobs; needs a topology")
    controller: str = Field(
        "none", description="who carries decisions out: none, slurm, torchrun, kubernetes, nvrx, webhook or command"
    )
    controller_options: dict[str, Any] = Field(
        default_factory=dict, description='what the controller is told, such as {"timeout_s": 10}'
    )  # Any: each controller has its own, and checks them
    modes: dict[Action, Mode] = Field(
        default_factory=dict, description='what may be done by itself: {"replace": "propose"}; else only observed'
    )
    spares: tuple[str, ...] = Field((), description="nodes kept idle for replacements, best first")
    gpu_hour_price: float | None = Field(None, ge=0, description="what a GPU-hour costs, to show losses as money")
    checkpoints: str = Field("", description="directory of a job's checkpoints, with {job} in it; empty: unknown")
    read_mb_per_s: float = Field(1000.0, gt=0, description="at which a checkpoint is loaded by the whole job")
    checkpoint_quiet_s: float = Field(
        10.0, ge=0, description="after a file's last change; until then it is being written"
    )
    converter: tuple[str, ...] = Field(
        (),
        description="DeepSpeed's converter, run before a restart on another layout, such as "
        '["/opt/train/bin/python", "-m", "deepspeed.checkpoint.ds_to_universal"]; empty: never',
    )
    convert_timeout_s: float = Field(3600.0, gt=0, description="after which a conversion has failed")
    jobs: dict[str, JobHints] = Field(
        default_factory=dict, description="hints by job; those of * hold for all others"
    )
    can_shrink: bool = Field(False, description="jobs go on without a worker when they are told to")
    test_command: tuple[str, ...] = Field(
        (), description="tests an isolated {node}: exit code 0 returns it to service"
    )
    test_timeout_s: float = Field(1800.0, gt=0, description="after which a test has failed")
    test_after_s: float = Field(60.0, ge=0, description="rest of an isolated node before its test")
    nodes_per_hour: int = Field(2, ge=0, description="most nodes that are isolated in an hour without a person")
    restarts_per_hour: int = Field(6, ge=0, description="most jobs that are restarted in an hour without a person")
    nodes_out: int = Field(8, ge=0, description="most nodes that are out of service at once without a person")
    share_of_block: float = Field(0.25, ge=0, le=1, description="the same within one rack or leaf; one always may be")
    start_s: float = Field(
        120.0, ge=0, description="from the order until a new attempt's first step, without loading"
    )
