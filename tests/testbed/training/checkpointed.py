"""A job that resumes on another number of ranks: `python -m tests.testbed.training.checkpointed --dir CKPTS ...`.

Each process is a rank, numbered by Slurm; ranks meet through a file in --rendezvous. With --ranks N one process forks
all of them on loopback. The global batch is the same on any number of ranks, so the losses go on where the checkpoint
ends.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from lockstep.errors import LockstepError
from lockstep.verdict import Frozen
from tests.testbed.training.checkpoints import find_checkpoint, load, save
from tests.testbed.training.forking import fork_child

if TYPE_CHECKING:  # torch comes with it
    from tests.testbed.training.sharded import Sharded

_TRIES = 3  # gloo's full mesh of connections is at times refused while a busy host still starts some of its ranks
# What tells one start of a job from another: a killed one leaves its meeting file behind.
_START = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


class LoggedStep(Frozen):
    """One line of the log; after a restart steps may come again, and the last line of a step counts."""

    step: int = Field(ge=1)
    loss: float
    ranks: int
    layout: str = Field(description="replicas x tensor-parallel ranks")
    resumed_from: int = Field(description="step of the checkpoint with which this run began; 0: none")
    time_ns: int = Field(description="end of the step")


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this process is, of how many, and the path of the files through which they meet."""

    rank: int
    ranks: int
    meeting: Path


def read_log(log: Path) -> dict[int, LoggedStep]:
    """Return what was told last of each step."""
    lines = log.read_text().splitlines() if log.exists() else []
    told = [LoggedStep.model_validate_json(line) for line in lines if line.endswith("}")]
    return {line.step: line for line in told}


def main(arguments: Sequence[str]) -> None:
    """Be one rank, or all of them."""
    options = _parser().parse_args(arguments)
    try:
        if options.ranks:
            _run_ranks(options)
        else:
            start = "-".join(["meeting", *(os.environ.get(name, "0") for name in _START)])
            rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
            _run_rank(Seat(rank, ranks, options.rendezvous / start), options)
    except LockstepError as error:
        raise SystemExit(str(error)) from None


def _run_rank(seat: Seat, options: argparse.Namespace) -> None:
    """Be a rank from the newest checkpoint to the last step."""
    import torch

    from tests.testbed.training.sharded import build_sharded

    replicas, tensor_parallel = map(int, options.layout.split("x")) if options.layout else (seat.ranks, 1)
    found = find_checkpoint(options.dir, os.environ)
    torch.set_num_threads(1)
    _meet(seat, options.timeout_s)
    sharded = build_sharded(replicas, tensor_parallel)
    _train(sharded, load(found, sharded) if found else 0, options)
    _part()


def _run_ranks(options: argparse.Namespace) -> None:
    """Fork all ranks on loopback and wait for them; LockstepError with those that failed."""
    # What every rank would otherwise import for itself; AdamW does so with dynamo.
    from torch import _dynamo  # noqa: F401
    from torch.distributed.checkpoint import state_dict  # noqa: F401

    import tests.testbed.training.sharded  # noqa: F401

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        seats = [Seat(rank, options.ranks, Path(folder, "meeting")) for rank in range(options.ranks)]
        pids = {fork_child(partial(_run_rank, seat, options)): seat.rank for seat in seats}
        ended = dict(os.wait() for _ in pids)
    failed = {pids[pid]: os.waitstatus_to_exitcode(status) for pid, status in ended.items() if status}
    if failed:
        names = ", ".join(f"{rank} with {code}" for rank, code in sorted(failed.items()))
        raise LockstepError(f"ranks of the training job have failed: {names}")


def _meet(seat: Seat, timeout_s: float) -> None:
    """Join the default group through the first file that works for all ranks; LockstepError if there is none."""
    from torch import distributed

    complaints = []
    for number in range(_TRIES):
        place = f"file://{seat.meeting.absolute()}.{number}"
        try:
            distributed.init_process_group(
                "gloo",
                init_method=place,
                rank=seat.rank,
                world_size=seat.ranks,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
            distributed.barrier()  # the group counts only if it works for everybody
            return
        except RuntimeError as error:
            complaints.append(f"{place}: {error}")
            _part()
    raise LockstepError(f"rank {seat.rank} of {seat.ranks} could not meet the others at {'; '.join(complaints)}")


def _part() -> None:
    """Leave all groups; peers that still wait for this rank get an error at once."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _train(sharded: "Sharded", resumed_from: int, options: argparse.Namespace) -> None:
    """Do the steps that are left, each with its line and some with a checkpoint."""
    from torch import distributed

    from tests.testbed.training.sharded import train_step

    replicas, tensor_parallel = sharded.mesh.shape
    for step in range(resumed_from + 1, options.steps + 1):
        begin = time.monotonic()
        loss = train_step(sharded, step)
        time.sleep(max(0.0, options.step_s - (time.monotonic() - begin)))
        if distributed.get_rank() == 0:
            line = LoggedStep(
                step=step,
                loss=loss,
                ranks=distributed.get_world_size(),
                layout=f"{replicas}x{tensor_parallel}",
                resumed_from=resumed_from,
                time_ns=time.time_ns(),
            )
            with open(options.log, "a") as log:
                log.write(f"{line.model_dump_json()}\n")
        if step % options.every == 0:
            save(options.dir, step, sharded)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.training.checkpointed")
    parser.add_argument("--dir", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, required=True, help="in all, those before the checkpoint included")
    parser.add_argument("--step-s", type=float, default=0.0, help="shortest time of a step")
    parser.add_argument("--every", type=int, default=5, help="steps from checkpoint to checkpoint")
    parser.add_argument("--layout", help="replicas x tensor-parallel ranks, such as 2x2")
    parser.add_argument("--log", type=Path, required=True, help="file that gets a line of JSON for each step")
    parser.add_argument("--rendezvous", type=Path, help="folder that all ranks see, in which they meet")
    parser.add_argument("--ranks", type=int, help="fork so many ranks here")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="of meeting, and of every collective")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
