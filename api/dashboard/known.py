"""What is known of a job before anybody supposes anything: its last checkpoint, and the spares that are free."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lockstep.figures import lasting
from planner.recovery.checkpoint_folders import CheckpointFolders
from planner.recovery.facts import Layout, Resume

SUPPOSED_AGE_MIN, SUPPOSED_LOAD_S = 30, 120  # of a checkpoint, where none is known
_SUPPOSED = "supposed"


@dataclass(frozen=True, slots=True)
class Known:
    """Figures that a question begins with, each with where it came from."""

    checkpoint_min: int
    checkpoint_from: str
    load_s: int
    load_from: str
    spares: tuple[str, ...]
    spares_from: str
    resume: Resume | None = None  # None: the checkpoint is supposed
    resume_smaller: Resume | None = None  # on fewer nodes; None: nothing there loads on them
    next_save_s: float | None = None

    def is_this(self, checkpoint_min: int, load_s: int) -> bool:
        """Return whether the checkpoint that is asked about is the one that is there."""
        return self.resume is not None and (checkpoint_min, load_s) == (self.checkpoint_min, self.load_s)


def read_known(
    folders: CheckpointFolders | None,
    job: str,
    layout: Layout | None,
    spares: tuple[tuple[str, ...], str],
    now_ns: int,
) -> Known:
    """Return what the job's own folder of checkpoints says; where it says nothing, what is supposed, and why."""
    free, spares_from = spares
    if folders is None:
        return _suppose(f"{_SUPPOSED}: planner.checkpoints is not set", free, spares_from)
    resume = folders.newest(job, layout, now_ns)
    if resume is None:
        folder = folders.catalogue(job, now_ns).folder
        return _suppose(f"{_SUPPOSED}: no checkpoint in {folder} is verified to be complete", free, spares_from)
    age = lasting(resume.age_s)
    return Known(
        checkpoint_min=round(resume.age_s / 60),
        checkpoint_from=f"{resume.path}, saved {age} ago, the newest that is verified to be complete",
        load_s=round(resume.back_s),
        load_from="its size at planner.read_mb_per_s" + (", and its conversion" if resume.convert_s else ""),
        spares=free,
        spares_from=spares_from,
        resume=resume,
        resume_smaller=folders.newest(job, None, now_ns, is_resized=True),
        next_save_s=folders.next_save_s(job, now_ns),
    )


def find_free(spares: Sequence[str], out: Collection[str], busy: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Return the spares that are neither out of service nor in use, and in words where the count is from.

    >>> find_free(["h8", "h9"], {"h9"}, set())
    (('h8',), '1 of 2 in planner.spares: h9 is out of service')
    """
    if not spares:
        return (), "planner.spares names none"
    taken = [f"{name} is out of service" for name in spares if name in out]
    taken += [f"{name} runs a job" for name in spares if name in busy and name not in out]
    free = tuple(name for name in spares if name not in out and name not in busy)
    why = f": {', '.join(taken)}" if taken else ", none of them out of service or in use"
    return free, f"{len(free)} of {len(spares)} in planner.spares{why}"


def _suppose(why: str, spares: tuple[str, ...], spares_from: str) -> Known:
    return Known(SUPPOSED_AGE_MIN, why, SUPPOSED_LOAD_S, why, spares, spares_from)
