"""Whether a submission whose answer was lost has arrived, and when sbatch may be called once more. Pure.

sbatch may be cut off after its request is on the way, by our death or by a slurmctld that is slow. slurmctld takes
requests in their order, so a look that it answers later shows what came before; and it remembers a job for MinJobAge
after its end, so looks that are closer together than that miss no job, however short. When a look comes too late,
nobody can know any more, and nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.clock import NS_PER_S
from planner.controllers.slurm_parsing import SlurmTimes, write_mark

SUBMITTING, LOOKED = "submitting_ns", "looked_ns"  # in a note: when sbatch was called, when we last looked in vain
# MessageTimeout once for the command, which gives up then, and once for slurmctld to work off what it has taken.
_ANSWER_TIMES = 2


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a lost submission is: it never came, it may still come, or nobody can tell any more."""

    state: Literal["absent", "open", "unknowable"]
    what: str = ""


def judge_arrival(note: Mapping[str, str], mark: str, times: SlurmTimes, now_ns: int) -> Arrival:
    """Return what it means that no job carries the mark of a note, looked for just now."""
    if SUBMITTING not in note:
        return Arrival("absent")
    called_ns = int(note[SUBMITTING])
    since_call_s = (now_ns - called_ns) / NS_PER_S
    since_look_s = (now_ns - int(note.get(LOOKED, called_ns))) / NS_PER_S
    if times.memory_s and since_look_s >= times.memory_s:
        return Arrival("unknowable", _say_unknowable(note["job"], mark, since_look_s, times.memory_s))
    wait_s = _ANSWER_TIMES * times.answer_s
    if since_call_s < wait_s:
        return Arrival("open", _say_open(note["job"], mark, since_call_s, wait_s))
    return Arrival("absent")


def _say_unknowable(job: str, mark: str, since_look_s: float, memory_s: float) -> str:
    return (
        f"this needs a person: sbatch was called for job {job}, its answer is lost, and nobody has looked for "
        f"{since_look_s:.0f} s, while Slurm forgets an ended job after {memory_s:g} s (MinJobAge); see whether a job "
        f'with the comment "{write_mark(mark)}" has run, and submit job {job} by hand if none has'
    )


def _say_open(job: str, mark: str, since_call_s: float, wait_s: float) -> str:
    return (
        f"sbatch was called for job {job} {since_call_s:.0f} s ago and its answer is lost: it is called again when "
        f'no job with the comment "{write_mark(mark)}" has come after {wait_s:g} s'
    )
