"""Which checkpoint to restart from on a layout: the newest that is verified complete and that the layout can load.

What is newer and was passed over is named with the reason, and so is the next older one that would do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.verdict import Frozen
from planner.recovery.checkpoints.checkpoint import Catalogue, Checkpoint, Layout, newest_first
from planner.recovery.checkpoints.loading import ReadRate, estimate_convert_s, estimate_load_s

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


def choose_checkpoint(catalogue: Catalogue, target: Layout, options: ChoiceOptions | None = None) -> Choice:
    """Return the newest checkpoint that is verified complete and can be loaded on the target layout."""
    options = options or ChoiceOptions()
    passed, fitting = list[PassedOver](), list[Checkpoint]()
    for each in sorted(catalogue.checkpoints, key=lambda each: _prefer(each, target)):
        refusal = find_refusal(each, target, options)
        if refusal is None:
            fitting.append(each)
        elif not fitting:
            passed.append(PassedOver(path=each.path, because=refusal))
    if not fitting:
        return Choice(passed_over=tuple(passed), reason=_say_none(catalogue, target, passed))
    return _describe(fitting, passed, catalogue, target, options)


def find_refusal(checkpoint: Checkpoint, target: Layout, options: ChoiceOptions) -> str | None:
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


def is_same_grid(saved: Layout, target: Layout) -> bool:
    """Tell whether ranks hold the same shards: what one of the two does not say is not the same."""
    return bool(_replicas(saved)) and _replicas(saved) == _replicas(target) and _differs_in_dp_only(saved, target)


def build_convert_command(
    source: str, destination: str, converter: Sequence[str], flags: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return DeepSpeed's converter as a list of arguments; it writes `latest_universal` beside the destination."""
    return (*converter, "--input_folder", source, "--output_folder", destination, *flags)


def _differs_in_dp_only(saved: Layout, target: Layout) -> bool:
    same = [getattr(saved, name) == getattr(target, name) is not None for name in ("tp", "pp")]
    return all(same) and (saved.ep or 1) == (target.ep or 1)


def _replicas(layout: Layout) -> int | None:
    """Return over how many ranks optimizer states are cut: those that share a sequence count as replicas here."""
    return layout.dp * (layout.cp or 1) if layout.dp else None


def _prefer(checkpoint: Checkpoint, target: Layout) -> tuple[object, ...]:
    """Return a key: the newest step first, and of one step what need not be converted."""
    no_step, step, *rest = newest_first(checkpoint)
    needs = checkpoint.moves == "convert" and not is_same_grid(checkpoint.layout, target)
    return no_step, step, needs, *rest


def _describe(
    fitting: list[Checkpoint], passed: list[PassedOver], catalogue: Catalogue, target: Layout, options: ChoiceOptions
) -> Choice:
    chosen = fitting[0]
    needs = chosen.moves == "convert" and not is_same_grid(chosen.layout, target)
    path = _name_destination(chosen.path, catalogue) if needs else chosen.path
    return Choice(
        checkpoint=chosen,
        load_from=path,
        convert=build_convert_command(chosen.path, path, options.converter, chosen.convert_flags) if needs else (),
        limits=_CONVERT_LIMITS if needs else (),
        convert_s=estimate_convert_s(chosen, options.rates) if needs else None,
        load_s=estimate_load_s(chosen, options.rates),
        passed_over=tuple(passed),
        older=fitting[1].path if len(fitting) > 1 else None,
        reason=_say_chosen(chosen, target, needs, passed),
    )


def _name_destination(path: str, catalogue: Catalogue) -> str:
    """Return a folder that is not there yet: the converter would mix its files with what lies in it."""
    taken = {each.path for each in catalogue.checkpoints}
    number, name = 1, f"{path}_universal"
    while name in taken:
        number += 1
        name = f"{path}_universal_{number}"
    return name


def _say_chosen(chosen: Checkpoint, target: Layout, needs: bool, passed: list[PassedOver]) -> str:
    step = "of no known step" if chosen.step is None else f"of step {chosen.step}"
    how = f"after converting it from {chosen.layout} to {target}" if needs else f"on {target}"
    said = f"{chosen.path} {step} is the newest that is complete and loads {how}: {chosen.reason}"
    return f"{said}; {len(passed)} newer passed over: {passed[0].because}" if passed else said


def _say_none(catalogue: Catalogue, target: Layout, passed: list[PassedOver]) -> str:
    if not passed:
        return f"{catalogue.folder} holds no checkpoint"
    first = passed[0]
    none = f"none of {len(passed)} checkpoints can be restarted from on {target}"
    return f"{none}; the newest is {first.path}, and {first.because}"
