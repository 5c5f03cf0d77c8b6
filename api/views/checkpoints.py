"""The checkpoints of a job: the last good one, what going back to it loses, and when the next is expected."""

from pydantic import Field

from api.query import Page, SortKey, cut_sorted, show_timestamp
from lockstep.errors import NotPresent
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_executions
from lockstep.verdict import Frozen
from planner.checkpoints.checkpoint import Catalogue, Checkpoint, newest_first
from planner.checkpoints.choose import CheckpointFolders
from planner.steps import find_unloadable


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


def open_folders(settings: PlannerSettings, control: ControlDatabase | None = None) -> CheckpointFolders | None:
    """Return what looks at checkpoints as the planner does; None where nobody said where they are."""
    if not settings.checkpoints:
        return None
    return CheckpointFolders(
        settings.checkpoints,
        settings.read_mb_per_s,
        settings.checkpoint_quiet_s,
        unloadable=lambda: find_unloadable(list_executions(control)) if control else {},
    )


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
