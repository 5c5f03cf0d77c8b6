"""Ranks that are forked from a process that has imported torch once for all, and find each other for a gloo group."""

import ctypes
import datetime
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadInput, LockstepError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TRIES = 3  # gloo's full mesh of connections is at times refused while a busy host still starts some of its ranks
_NUMBERS = (("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"))
# What tells one start of a job from another: a killed one leaves its meeting file behind.
_START = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this process is, of how many, and where they meet: the second place only if the first fails."""

    rank: int
    ranks: int
    addresses: Sequence[str]


def find_seat(env: Mapping[str, str], rendezvous: Path | None) -> Seat:
    """Return this process's seat as Slurm or torchrun tell it; BadInput if they do not."""
    for rank, ranks in _NUMBERS:
        if rank in env and ranks in env:
            return Seat(int(env[rank]), int(env[ranks]), _find_addresses(env, rendezvous))
    raise BadInput("which rank is this? neither SLURM_PROCID and SLURM_NTASKS nor RANK and WORLD_SIZE are set")


def files_at(path: Path) -> list[str]:
    """Return a file for each try; `path` is one that no other meeting uses."""
    return [f"file://{path.absolute()}.{number}" for number in range(_TRIES)]


def meet(seat: Seat, timeout_s: float) -> None:
    """Join the default group at the first place to which all ranks come; LockstepError if there is none."""
    complaints = []
    for address in seat.addresses:
        try:
            _meet_at(address, seat, timeout_s)
            return
        except RuntimeError as error:
            complaints.append(f"{address}: {error}")
            part()
    raise LockstepError(f"rank {seat.rank} of {seat.ranks} could not meet the others at {'; '.join(complaints)}")


def part() -> None:
    """Leave all groups; peers that still wait for this rank get an error at once."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _find_addresses(env: Mapping[str, str], rendezvous: Path | None) -> list[str]:
    if rendezvous:
        return files_at(rendezvous / "-".join(["meeting", *(env.get(name, "0") for name in _START)]))
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return [f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"]
    raise BadInput("where do the ranks meet? give --rendezvous, or set MASTER_ADDR and MASTER_PORT")


def _meet_at(address: str, seat: Seat, timeout_s: float) -> None:
    from torch import distributed

    timeout = datetime.timedelta(seconds=timeout_s)
    distributed.init_process_group(
        "gloo", init_method=address, rank=seat.rank, world_size=seat.ranks, timeout=timeout
    )
    distributed.barrier()  # the group counts only if it works for everybody


def fork_child(live: Callable[[], None]) -> int:
    """Start a child that does `live` and ends, at the latest with its parent; return its process number."""
    parent = os.getpid()
    sys.stdout.flush()  # or the child would write it once more
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was faster
            raise LockstepError("the process that forked this one is gone")
        live()
        code = 0
    except BaseException:  # noqa: BLE001  # what follows in the parent must not happen here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_ranks_of(job: str, ranks: Sequence[Callable[[], None]]) -> None:
    """Fork all ranks and wait for them; LockstepError with those that failed."""
    pids = {fork_child(live): rank for rank, live in enumerate(ranks)}
    ended = dict(os.wait() for _ in pids)
    failed = {pids[pid]: os.waitstatus_to_exitcode(status) for pid, status in ended.items() if status}
    if failed:
        names = ", ".join(f"{rank} with {code}" for rank, code in sorted(failed.items()))
        raise LockstepError(f"ranks of the {job} job have failed: {names}")
