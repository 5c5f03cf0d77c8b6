"""A real framework on the testbed: all-reduces of torch.distributed over gloo, each rank in its host's namespace.

`python -m tests.testbed.gloo_job` reads a plan (JSON) and prints one JSON line per rank and step. All ranks are
forked from one process after it has imported torch, which takes seconds and 200 MB, and would do so once per rank.
"""

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pydantic import Field

from lockstep.errors import LockstepError
from lockstep.verdict import Frozen
from tests.testbed.fabric.namespaces import FOLDER, enter_network
from tests.testbed.training.meeting import run_ranks_of

_DTYPE_BYTES = 4  # float32


class GlooRank(Frozen):
    """Where a rank lives; without a namespace it lives in ours."""

    interface: str
    namespace: str | None = None


class GlooPlan(Frozen):
    """What the job does; `address` and `port` are where rank 0 meets the others."""

    ranks: tuple[GlooRank, ...] = Field(min_length=1)
    address: str
    port: int = Field(ge=1, le=65_535)
    steps: int = Field(ge=1)
    bytes: int = Field(ge=_DTYPE_BYTES)
    timeout_s: float = Field(60.0, gt=0, description="for meeting, and for every all-reduce")


class GlooStep(Frozen):
    """One all-reduce of one rank; `sum` is the first element of the result."""

    rank: int
    step: int
    ms: float
    sum: float


def start_gloo_job(plan: GlooPlan, log: Path, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start the job as a process of its own; its lines and its complaints go to `log`."""
    command = [sys.executable, "-m", "tests.testbed.gloo_job"]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=dict(env) if env is not None else None
        )
    assert process.stdin is not None
    with process.stdin as plan_file:
        plan_file.write(plan.model_dump_json().encode())
    return process


def read_steps(log: Path) -> list[GlooStep]:
    """Return the steps that a job has told of so far; its complaints are passed over."""
    lines = log.read_text(errors="replace").splitlines()
    return [GlooStep.model_validate_json(line) for line in lines if line.startswith('{"rank"') and line.endswith("}")]


def run_job(plan: GlooPlan) -> None:
    """Fork the ranks and wait for them; LockstepError with those that failed."""
    import torch.distributed  # the one heavy import, before all forks  # noqa: F401

    run_ranks_of("gloo", [partial(_live, plan, rank) for rank in range(len(plan.ranks))])


def _live(plan: GlooPlan, rank: int) -> None:
    seat = plan.ranks[rank]
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    if seat.namespace:
        with open(FOLDER / seat.namespace) as namespace:
            enter_network(namespace.fileno())
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{plan.address}:{plan.port}",
        rank=rank,
        world_size=len(plan.ranks),
        timeout=datetime.timedelta(seconds=plan.timeout_s),
    )
    for step in range(plan.steps):
        values = torch.full((plan.bytes // _DTYPE_BYTES,), float(rank + 1))
        begin = time.monotonic()
        distributed.all_reduce(values)
        line = GlooStep(rank=rank, step=step, ms=(time.monotonic() - begin) * 1e3, sum=float(values[0]))
        os.write(sys.stdout.fileno(), f"{line.model_dump_json()}\n".encode())  # whole: ranks share the file
    distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        run_job(GlooPlan.model_validate(json.load(sys.stdin)))
    except LockstepError as error:
        raise SystemExit(str(error)) from None
