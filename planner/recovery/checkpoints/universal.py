"""Is a universal checkpoint whole? It has one folder per parameter, and the model states name every parameter."""

from pathlib import Path

from lockstep.errors import BadInput
from planner.recovery.checkpoints.finding import Finding, find_damaged, incomplete, name_some, whole
from planner.recovery.checkpoints.folder import Folder, list_folder
from planner.recovery.checkpoints.torch_file import read_saved
from planner.recovery.checkpoints.zero import find_parameters, sort_files

_PARAMETERS = "zero"
_LEFT_OVER = "tmp"  # where the converter keeps slices until it has merged them
_COMMON = "optimizer_state.pt"
_VALUE = "fp32.pt"
_MOMENTS = {"exp_avg.pt", "exp_avg_sq.pt"}  # of Adam; a parameter without gradients has none


def is_universal(folder: Folder) -> bool:
    """Tell whether a folder holds a universal checkpoint, or what the converter has begun."""
    files = sort_files(folder.files)
    has_begun = files.first_model or _LEFT_OVER in folder.folders
    return _PARAMETERS in folder.folders and bool(has_begun) and not files.optim


def list_parameters(folder: Folder) -> list[Folder]:
    """Return the folder of parameters and that of each parameter."""
    top = list_folder(folder.path / _PARAMETERS)
    return [top, *(list_folder(top.path / name) for name in top.folders)]


def check_universal(folder: Folder, inner: list[Folder]) -> Finding:
    """Return whether every parameter that the model states name is there with its value and its moments."""
    if _LEFT_OVER in folder.folders:
        return incomplete("the converter has not ended: its folder tmp is still there")
    top, *parameters = inner
    if top.problem or _COMMON not in top.files:
        return incomplete(
            top.problem or f"has no {_PARAMETERS}/{_COMMON}, which the converter writes after the parameters"
        )
    problem = find_damaged(top, [_COMMON]) or next(filter(None, map(_find_problem, parameters)), None)
    problem = problem or find_damaged(folder, (name for name in folder.files if name.endswith("_states.pt")))
    return incomplete(problem) if problem else _check_names(folder, {each.path.name for each in parameters})


def _find_problem(parameter: Folder) -> str | None:
    if parameter.problem:
        return parameter.problem
    if _VALUE not in parameter.files:
        return f"{_PARAMETERS}/{parameter.path.name} has no {_VALUE}"
    lacks = _MOMENTS - parameter.files.keys()
    if len(lacks) == 1:
        return f"{_PARAMETERS}/{parameter.path.name} has no {lacks.pop()}, and it has the other moment"
    damage = find_damaged(parameter, (name for name in parameter.files if name.endswith(".pt")))
    return f"{Path(_PARAMETERS, parameter.path.name)}/{damage}" if damage else None


def _check_names(folder: Folder, has: set[str]) -> Finding:
    files = sort_files(folder.files)
    every = sorted((files.model or files.model_3).values())
    if not every:
        return Finding("unverified", "no model states are there to name the parameters")
    named: set[str] = set()
    try:
        for name in every:
            saved = read_saved(folder.file(name), folder.files[name].bytes)
            named |= find_parameters(saved)
    except BadInput as error:
        return Finding("unverified", f"the names of the parameters are not known: {error}")
    if not named or named - has:
        return incomplete(f"{_PARAMETERS} lacks {name_some(named - has)}" if named else "no parameter is named")
    said = f"all {len(named)} parameters that the model states name are there, and each file has its end"
    because = "universal checkpoints load on any layout of the same model"
    return Finding("complete", said, step=whole(saved.get("global_steps")), moves_because=because)
