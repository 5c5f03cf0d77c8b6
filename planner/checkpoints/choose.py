"""Which checkpoint to restart from on a layout: the newest that is verified complete and that the layout can load.

What is newer and was passed over is named with the reason, and so is the next older one that would do.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.verdict import Frozen
from planner.checkpoints.catalogue import Budget, Contents, ReadOptions, read_catalogue
from planner.checkpoints.checkpoint import (
    Catalogue,
    Checkpoint,
    ReadRate,
    SavedLayout,
    estimate_convert_s,
    estimate_load_s,
    newest_first,
)
from planner.checkpoints.convert import find_obstacle
from planner.checkpoints.intervals import expect_next_save, find_usual_interval_s
from planner.context import Layout, Resume

# With a python of the job's environment: there DeepSpeed is installed.
CONVERTER = ("python", "-m", "deepspeed.checkpoint.ds_to_universal")
_CONVERT_LIMITS = (
    "the model of the new layout must have the same parameter names",
    "only states of Adam-like optimizers are converted",
    "the folder needs room for about twice the bytes of the checkpoint while it runs, and for once afterwards",
    'the job then loads with {"checkpoint": {"load_universal": true}} in its DeepSpeed settings',
    "its exit code is its only signal: the result has to be verified before it is loaded",
)


class PassedOver(Frozen):
    """A checkpoint that is not restarted from, and why."""

    path: str
    because: str


class Choice(Frozen):
    """What to restart from; without a checkpoint, `reason` says why there is none."""

    checkpoint: Checkpoint | None = None
    load_from: str | None = None  # the folder to load: the checkpoint's own, or the one that the command makes
    convert: tuple[str, ...] = ()  # the command to run before; empty: none is needed
    limits: tuple[str, ...] = ()  # what the command does not do
    convert_s: float | None = None  # None: not known, or nothing to convert
    load_s: float | None = None  # None: not known
    passed_over: tuple[PassedOver, ...] = ()  # newer ones, the newest first
    older: str | None = None  # the next older one that would do
    reason: str


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """What costs are estimated from, and how the converter is started."""

    rates: Sequence[ReadRate] = ()
    converter: tuple[str, ...] = CONVERTER  # gets --input_folder and --output_folder
    may_convert: bool = True


def choose_checkpoint(catalogue: Catalogue, target: SavedLayout, options: ChoiceOptions | None = None) -> Choice:
    """Return the newest checkpoint that is verified complete and can be loaded on the target layout."""
    options = options or ChoiceOptions()
    passed, fitting = list[PassedOver](), list[Checkpoint]()
    for each in sorted(catalogue.checkpoints, key=lambda each: _prefer(each, target)):
        refusal = find_refusal(each, target, options)
        if refusal is None:
            fitting.append(each)
        elif not fitting:
            passed.append(PassedOver(path=each.path, because=refusal))
    if fitting:
        return _describe(fitting, passed, catalogue, target, options)
    if not passed:
        return Choice(reason=f"{catalogue.folder} holds no checkpoint")
    none = f"none of {len(passed)} checkpoints can be restarted from on {target}"
    newest = f"the newest is {passed[0].path}, and {passed[0].because}"
    return Choice(passed_over=tuple(passed), reason=f"{none}; {newest}")


def find_refusal(checkpoint: Checkpoint, target: SavedLayout, options: ChoiceOptions) -> str | None:
    """Return why a checkpoint cannot be restarted from on a layout, or None where it can."""
    if checkpoint.state != "complete":
        return f"it is {checkpoint.state}: {checkpoint.reason}"
    if is_same_grid(checkpoint.layout, target):
        return None
    where = f"it was saved on {checkpoint.layout} and not on {target}"
    if checkpoint.moves == "never" or (
        checkpoint.moves == "dp" and not _differs_in_dp_only(checkpoint.layout, target)
    ):
        return f"{where}, and {checkpoint.moves_because}"
    if checkpoint.moves == "convert" and not options.may_convert:
        return f"{where}, and nothing may be converted"
    if checkpoint.experts and target.ep and checkpoint.experts % target.ep:
        return f"{where}, and its {checkpoint.experts} experts cannot be shared evenly by ep{target.ep}"
    return None


def is_same_grid(saved: SavedLayout, target: SavedLayout) -> bool:
    """Tell whether ranks hold the same shards: what one of the two does not say is not the same."""
    return bool(_replicas(saved)) and _replicas(saved) == _replicas(target) and _differs_in_dp_only(saved, target)


def _differs_in_dp_only(saved: SavedLayout, target: SavedLayout) -> bool:
    same = [getattr(saved, name) == getattr(target, name) is not None for name in ("tp", "pp")]
    return all(same) and (saved.ep or 1) == (target.ep or 1)


def _replicas(layout: SavedLayout) -> int | None:
    """Return over how many ranks optimizer states are cut: those that share a sequence count as replicas here."""
    return layout.dp * (layout.cp or 1) if layout.dp else None


def _prefer(checkpoint: Checkpoint, target: SavedLayout) -> tuple[object, ...]:
    """Return a key: the newest step first, and of one step what need not be converted."""
    no_step, step, *rest = newest_first(checkpoint)
    return no_step, step, _needs_conversion(checkpoint, target), *rest


def _needs_conversion(checkpoint: Checkpoint, target: SavedLayout) -> bool:
    return checkpoint.moves == "convert" and not is_same_grid(checkpoint.layout, target)


def _describe(
    fitting: list[Checkpoint],
    passed: list[PassedOver],
    catalogue: Catalogue,
    target: SavedLayout,
    options: ChoiceOptions,
) -> Choice:
    chosen = fitting[0]
    needs = _needs_conversion(chosen, target)
    path = _name_destination(chosen.path, catalogue) if needs else chosen.path
    folders = ("--input_folder", chosen.path, "--output_folder", path)  # DeepSpeed writes `latest_universal` beside
    step = "of no known step" if chosen.step is None else f"of step {chosen.step}"
    how = f"after converting it from {chosen.layout} to {target}" if needs else f"on {target}"
    newer = f"; {len(passed)} newer passed over: {passed[0].because}" if passed else ""
    return Choice(
        checkpoint=chosen,
        load_from=path,
        convert=(*options.converter, *folders, *chosen.convert_flags) if needs else (),
        limits=_CONVERT_LIMITS if needs else (),
        convert_s=estimate_convert_s(chosen, options.rates) if needs else None,
        load_s=estimate_load_s(chosen, options.rates),
        passed_over=tuple(passed),
        older=fitting[1].path if len(fitting) > 1 else None,
        reason=f"{chosen.path} {step} is the newest that is complete and loads {how}: {chosen.reason}{newer}",
    )


def _name_destination(path: str, catalogue: Catalogue) -> str:
    """Return a folder that is not there yet: the converter would mix its files with what lies in it."""
    taken = {each.path for each in catalogue.checkpoints}
    number, name = 1, f"{path}_universal"
    while name in taken:
        number += 1
        name = f"{path}_universal_{number}"
    return name


_REFRESH_S = 5.0  # between two looks at a folder: network file systems bear few


class CheckpointFolders:
    """Answers from the folder that a pattern such as /checkpoints/{job} names."""

    def __init__(
        self,
        pattern: str,
        read_mb_per_s: float,
        quiet_s: float = ReadOptions().quiet_s,
        converter: tuple[str, ...] = CONVERTER,  # empty: nothing is converted here
        unloadable: Callable[[], Mapping[str, tuple[int, str]]] = dict,  # paths: until when they failed, and how
    ) -> None:
        self._unloadable = unloadable
        self._pattern, self._reading = pattern, ReadOptions(quiet_s=quiet_s)
        rate = ReadRate(source="remote", bytes_per_s=read_mb_per_s * 1e6)
        self._options = ChoiceOptions(rates=(rate,), converter=converter)
        self._seen: dict[str, Catalogue] = {}
        budget = Budget(every_s=_REFRESH_S)  # of all jobs together
        self._contents = defaultdict[str, Contents](lambda: Contents(budget))

    def newest(self, job: str, layout: Layout | None, now_ns: int, is_resized: bool = False) -> Resume | None:
        """Return the newest checkpoint that is verified complete and loads on a layout; None: there is none.

        Without a layout a job starts again as it was; where it is resized, nothing is known of its layout then, and
        only a checkpoint will do that loads on any.
        """
        catalogue = self.catalogue(job, now_ns)
        saved = next((each.layout for each in catalogue.complete), SavedLayout())
        wanted = SavedLayout.of(layout.as_target()) if layout else None
        target = wanted or (SavedLayout() if is_resized else saved)
        choice = self._choose(catalogue, target)
        found = choice.checkpoint
        if found is None or choice.load_from is None:
            return None
        return Resume(
            path=choice.load_from,
            form="universal" if choice.convert else found.format,
            age_s=max(found.age_s(now_ns), 0.0),
            load_s=choice.load_s or 0.0,
            convert=choice.convert,
            convert_s=choice.convert_s or 0.0,
            bytes=found.bytes,
            obstacle=self._find_obstacle(choice),
        )

    def save_every_s(self, job: str, now_ns: int) -> float | None:
        """Return the usual time from one checkpoint to the next; None: too few are there."""
        return find_usual_interval_s(self.catalogue(job, now_ns))

    def next_save_s(self, job: str, now_ns: int) -> float | None:
        """Return when the next one is expected, by the gaps between those that are there."""
        expected_ns = expect_next_save(self.catalogue(job, now_ns), now_ns)
        return None if expected_ns is None else (expected_ns - now_ns) / NS_PER_S

    def _choose(self, catalogue: Catalogue, target: SavedLayout) -> Choice:
        """Return the choice; where its conversion cannot be done from here, the best that needs none, if there is."""
        choice = choose_checkpoint(catalogue, target, self._options)
        if self._find_obstacle(choice) is None:
            return choice
        older = choose_checkpoint(catalogue, target, replace(self._options, may_convert=False))
        return older if older.checkpoint else choice

    def _find_obstacle(self, choice: Choice) -> str | None:
        found, made = choice.checkpoint, choice.load_from
        if not choice.convert or found is None or made is None:
            return None
        if not self._options.converter:
            return f"{found.path} must be converted for the new layout, and planner.converter is not set"
        return find_obstacle(found.path, made)

    def catalogue(self, job: str, now_ns: int) -> Catalogue:
        """Return all checkpoints of a job that were there a moment ago, with what is known of each."""
        before = self._seen.get(job)
        if before is not None and now_ns - before.seen_ns < _REFRESH_S * NS_PER_S:
            return before
        # A job's name comes from telemetry: it must not lead out of the folder.
        folder = Path(self._pattern.replace("{job}", job.replace("/", "_").strip(".") or "_"))
        try:
            read = self._contents[job]
            found = read_catalogue(folder, now_ns, job=job, before=before, contents=read, options=self._reading)
        except BadInput as absent:
            found = Catalogue(job=job, folder=str(folder), seen_ns=now_ns, remarks=(str(absent),))
        self._seen[job] = found = _without(found, self._unloadable())
        return found


def _without(catalogue: Catalogue, unloadable: Mapping[str, tuple[int, str]]) -> Catalogue:
    """Return the catalogue in which nothing is complete that a job could not load, unless it was saved anew since."""

    def judge(each: Checkpoint) -> Checkpoint:
        failed_ns, why = unloadable.get(each.path, (-1, ""))
        is_bad = each.state == "complete" and each.saved_ns <= failed_ns
        return each.model_copy(update={"state": "unreadable", "reason": why}) if is_bad else each

    return catalogue.model_copy(update={"checkpoints": tuple(map(judge, catalogue.checkpoints))})
