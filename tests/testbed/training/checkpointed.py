"""A job that resumes on another number of ranks: `python -m tests.testbed.training.checkpointed --dir CKPTS ...`.

Each process is a rank, numbered by Slurm (SLURM_PROCID, SLURM_NTASKS) or torchrun (RANK, WORLD_SIZE); ranks meet
through a file in --rendezvous, or at MASTER_ADDR and MASTER_PORT. With --ranks N one process forks all of them on
loopback. The global batch is the same on any number of ranks, so the losses go on where the checkpoint ends.

Checkpoints are in torch's distributed format, complete or not there, and loaded on any mesh: `step-12` holds the
state after step 12; it is written as `step-12.part` and gets its name when every rank's file and, last of all,
`.metadata` are there.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from lockstep.errors import BadInput, LockstepError
from lockstep.verdict import Frozen
from tests.testbed.training.meeting import Seat, files_at, find_seat, meet, part, run_ranks_of

if TYPE_CHECKING:  # torch is heavy, and who only asks for the newest checkpoint does not need it
    from tests.testbed.training.model import Sharded

RESUME_FROM = "LOCKSTEP_RESUME_FROM"
_PACE_STEPS = 3  # of the process beside us: the operations of one of ours
_POLL_S = 0.02
_NAME = re.compile(r"step-(\d+)")


def find_checkpoint(folder: Path, env: Mapping[str, str]) -> Path | None:
    """Return the checkpoint that the environment names, or the newest complete one; None: begin anew."""
    named = env.get(RESUME_FROM)
    if not named:
        return find_newest(folder)
    if not _is_complete(Path(named)):
        raise BadInput(f"{RESUME_FROM} names {named}, which is not a complete checkpoint")
    return Path(named)


def find_newest(folder: Path) -> Path | None:
    named = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if _is_complete(path))
    complete = [(int(name[1]), path) for name, path in named if name]
    return max(complete)[1] if complete else None


def save(folder: Path, step: int, sharded: "Sharded") -> None:
    """Write a checkpoint; all ranks call this together."""
    from torch import distributed
    from torch.distributed.checkpoint import state_dict_saver

    part, whole = folder / f"step-{step}.part", folder / f"step-{step}"
    state_dict_saver.save(_state(sharded, step), checkpoint_id=part)
    if distributed.get_rank() == 0:
        shutil.rmtree(whole, ignore_errors=True)  # of a run that went on from an older checkpoint
        part.rename(whole)
    distributed.barrier()


def load(path: Path, sharded: "Sharded") -> int:
    """Take over the state of a checkpoint, saved on whatever mesh; return its step."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _state(sharded, 0)
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        sharded.model, sharded.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(state["step"])


def _is_complete(path: Path) -> bool:
    return (path / ".metadata").is_file()


def _state(sharded: "Sharded", step: int) -> dict[str, Any]:  # nested dicts of tensors and options, as torch wants
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(sharded.model, sharded.optimizer)
    return {"model": model, "optimizer": optimizer, "step": step}


class LoggedStep(Frozen):
    """One line of the log; after a restart steps may come again, and the last line of a step counts."""

    step: int = Field(ge=1)
    loss: float
    ranks: int
    layout: str = Field(description="replicas x tensor-parallel ranks")
    resumed_from: int = Field(description="step of the checkpoint with which this run began; 0: none")
    time_ns: int = Field(description="end of the step")


@dataclass(frozen=True, slots=True)
class JobOptions:
    folder: Path  # of its checkpoints
    steps: int  # in all, those before the checkpoint included
    every: int = 5  # steps from checkpoint to checkpoint
    log: Path | None = None  # gets a line of JSON for each step
    paced_by: Path | None = None  # what the process beside the first rank writes; `_PACE_STEPS` of its steps are one
    layout: tuple[int, int] | None = None  # replicas and tensor-parallel ranks; None: replicas only
    timeout_s: float = 60.0  # of meeting, and of every collective


def read_lines(log: Path) -> list[LoggedStep]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [LoggedStep.model_validate_json(line) for line in lines if line.endswith("}")]


def read_log(log: Path) -> dict[int, LoggedStep]:
    """Return what was written last of each step."""
    return {line.step: line for line in read_lines(log)}


def parse_layout(text: str) -> tuple[int, int]:
    """Return replicas and tensor-parallel ranks of a text such as 2x4."""
    replicas, _, tensor_parallel = text.partition("x")
    if not (replicas.isdigit() and tensor_parallel.isdigit() and int(replicas) and int(tensor_parallel)):
        raise BadInput(f"a layout is replicas x tensor-parallel ranks, such as 4x2, not {text}")
    return int(replicas), int(tensor_parallel)


def run_rank(seat: Seat, options: JobOptions) -> None:
    """Be a rank from the newest checkpoint to the last step."""
    import torch

    from tests.testbed.training.model import build_sharded

    replicas, tensor_parallel = options.layout or (seat.ranks, 1)
    if replicas * tensor_parallel != seat.ranks:
        raise BadInput(f"a layout of {replicas}x{tensor_parallel} does not fit {seat.ranks} ranks")
    found = find_checkpoint(options.folder, os.environ)
    torch.set_num_threads(1)
    meet(seat, options.timeout_s)
    sharded = build_sharded(replicas, tensor_parallel)
    _train(sharded, load(found, sharded) if found else 0, options)
    part()


def run_ranks(ranks: int, options: JobOptions) -> None:
    """Fork all ranks on loopback and wait for them; LockstepError with those that failed."""
    # What every rank would otherwise import for itself; AdamW does so with dynamo.
    from torch import _dynamo  # noqa: F401
    from torch.distributed.checkpoint import state_dict  # noqa: F401

    import tests.testbed.training.model  # noqa: F401

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        seats = [Seat(rank, ranks, files_at(Path(folder, "meeting"))) for rank in range(ranks)]
        run_ranks_of("training", [partial(run_rank, seat, options) for seat in seats])


def main(arguments: Sequence[str]) -> None:
    try:
        given = vars(_parser().parse_args(arguments))
        ranks, rendezvous = given.pop("ranks", None), given.pop("rendezvous", None)
        options = JobOptions(**given)
        if ranks:
            run_ranks(ranks, options)
        else:
            run_rank(find_seat(os.environ, rendezvous), options)
    except LockstepError as error:
        raise SystemExit(str(error)) from None


def _train(sharded: "Sharded", resumed_from: int, options: JobOptions) -> None:
    """Do the steps that are left, each with its line and some with a checkpoint."""
    from torch import distributed

    from tests.testbed.training.model import train_step

    replicas, tensor_parallel = sharded.mesh.shape
    beside = 0  # steps of the process beside us
    for step in range(resumed_from + 1, options.steps + 1):
        if distributed.get_rank() == 0 and options.paced_by:
            beside = _await_steps(options.paced_by, beside + _PACE_STEPS)
        loss = train_step(sharded, step)
        if distributed.get_rank() == 0 and options.log:
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
            save(options.folder, step, sharded)


def _await_steps(paced_by: Path, steps: int) -> int:
    """Return how many steps the process beside us has done, as soon as these are so many."""
    while (done := paced_by.read_bytes().count(b"step ") if paced_by.exists() else 0) < steps:
        time.sleep(_POLL_S)
    return done


def _parser() -> argparse.ArgumentParser:
    """Return what understands the fields of JobOptions, and where the ranks are."""
    program = "python -m tests.testbed.training.checkpointed"
    parser = argparse.ArgumentParser(prog=program, argument_default=argparse.SUPPRESS)
    parser.add_argument("--dir", dest="folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int)
    parser.add_argument("--layout", type=parse_layout, help="such as 2x2")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--paced-by", type=Path)
    parser.add_argument("--timeout-s", type=float)
    parser.add_argument("--rendezvous", type=Path, help="folder that all ranks see, in which they meet")
    parser.add_argument("--ranks", type=int, help="fork so many ranks here")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
