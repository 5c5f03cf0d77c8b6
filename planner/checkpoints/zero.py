"""Is a DeepSpeed ZeRO checkpoint whole? One file per rank, and the grid of ranks stands in the model states.

The file `latest` proves nothing: rank 0 writes it when its own files are written.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import (
    Finding,
    Folder,
    Moves,
    SavedLayout,
    find_damaged,
    incomplete,
    list_folder,
    name_some,
    whole,
)
from planner.checkpoints.torch_file import read_saved

# deepspeed/runtime/engine.py and pipe/module.py of 0.19.8; stage 3 has model states of every rank.
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_STATES = re.compile(r".*_(?:model|optim)_states\.pt")

_Cells = dict[tuple[int, ...], str]  # ranks in the name of a file, and its name


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a ZeRO checkpoint by the ranks in their names."""

    model: _Cells  # (mp,)
    model_3: _Cells  # (dp, mp), of stage 3
    optim: _Cells  # (dp, mp)
    layer: _Cells  # (layer, tp), of pipelines
    expert: _Cells  # (layer, expert, mp)

    @property
    def first_model(self) -> str | None:
        """Return the model states of the lowest rank: what they say of the grid holds for all."""
        cells = self.model or self.model_3
        return cells[min(cells)] if cells else None


def sort_files(names: Iterable[str]) -> Files:
    """Return the files by their ranks."""
    cells: list[_Cells] = [{}, {}, {}, {}, {}]
    for name in names:
        for kind, found in zip((_MODEL, _MODEL_3, _OPTIM, _LAYER, _EXPERT), cells, strict=True):
            if match := kind.fullmatch(name):
                found[tuple(map(int, match.groups()))] = name
    return Files(*cells)


def is_zero(folder: Folder) -> bool:
    """Tell whether a folder holds states as DeepSpeed names them."""
    return any(_STATES.fullmatch(name) for name in folder.files)


def check_zero(folder: Folder) -> Finding:
    """Return whether every rank of the grid has written its files, and each is whole."""
    files = sort_files(folder.files)
    if not files.first_model:
        return incomplete("has no model states of any rank")
    damage = find_damaged(folder, (name for name in folder.files if _STATES.fullmatch(name)))
    if damage:
        return incomplete(damage)
    # Each stage of a pipeline names its own layers; without one, the first rank says all.
    sources = files.model.values() if files.layer else [files.first_model]
    try:
        every = [read_saved(folder.file(name), folder.files[name].bytes) for name in sources]
    except BadInput as error:
        return Finding("unverified", f"nothing says how many ranks there should be: {error}")
    firsts = {name.partition(".")[0] for saved in every for name in find_parameters(saved)}
    layers = {int(first) for first in firsts if first.isdecimal()}  # in a pipeline, the number of the layer
    return _check_grid(files, every[0], layers if files.layer else set())


def find_parameters(saved: Mapping[Any, Any]) -> set[str]:  # Any: what a job saved
    """Return the names of the parameters that model states tell: those of their own stage."""
    groups = saved.get("param_shapes")
    held = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return {str(name) for group in held for name in group}


def _check_grid(files: Files, saved: Mapping[Any, Any], layers: set[int]) -> Finding:  # Any: what a job saved
    layout, counts = _find_layout(files, saved), saved.get("num_experts")
    experts = [count for each in counts if (count := whole(each))] if isinstance(counts, list) else []
    if layout is None:
        return Finding("unverified", f"{files.first_model} does not say how many ranks there should be")
    uses_zero = saved.get("param_shapes") is not None
    if files.expert and not (experts and uses_zero):
        return Finding("unverified", "nothing says how many experts there are, or ranks that share them", layout)
    missing = _find_missing(files, layout, layers, experts, uses_zero)
    step = whole(saved.get("global_steps"))
    if missing:
        message = f"{layout.world} ranks saved, and {name_some(missing)} is not there"
        return incomplete(message, layout=layout, step=step)
    moves, because, flags = _find_moves(files, saved, layout.tp or 1)
    count = sum(map(len, (files.model, files.model_3, files.optim, files.layer, files.expert)))
    message = f"all {count} files of {layout.world} ranks are there, and each has its end"
    return Finding("complete", message, layout, step, moves, because, flags, max(experts, default=None))


def _find_layout(files: Files, saved: Mapping[Any, Any]) -> SavedLayout | None:  # Any: what a job saved
    """Return the grid that the states tell; of older versions, layers tell what of it is tp."""
    dp, mp = whole(saved.get("dp_world_size")), whole(saved.get("mp_world_size"))
    dimensions = saved.get("checkpoint_parallel_dimensions")
    tp = whole(dimensions.get("tp_degree")) if isinstance(dimensions, dict) else None
    tp = tp or len({part for _, part in files.layer}) or mp
    if not dp or not mp or not tp or mp % tp:
        return None
    return SavedLayout(tp=tp, pp=mp // tp, dp=dp, world=mp * dp)


def _find_missing(
    files: Files, layout: SavedLayout, layers: set[int], experts: list[int], uses_zero: bool
) -> list[str]:
    """Return the names of files that ranks of this layout must have written and that are not there."""
    dp, mp = layout.dp or 1, (layout.tp or 1) * (layout.pp or 1)
    grid = list(product(range(dp), range(mp)))
    every = product(sorted(layers | {layer for layer, _ in files.layer}), range(layout.tp or 1))
    parts = {part for *_, part in files.expert} or {0}
    wanted_experts = [(i, e, part) for i, count in enumerate(experts) for e in range(count) for part in parts]
    return [
        # Without ZeRO the optimizer's state is in the model states.
        *_name_missing(files.optim, grid if uses_zero else [], "zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt"),
        *_name_missing(
            files.model_3, grid if files.model_3 else [], "zero_pp_rank_{}_mp_rank_{:02d}_model_states.pt"
        ),
        *_name_missing(
            files.model, [] if files.model_3 else [(p,) for p in range(mp)], "mp_rank_{:02d}_model_states.pt"
        ),
        *_name_missing(files.layer, every, "layer_{:02d}-model_{:02d}-model_states.pt"),
        *_name_missing(files.expert, wanted_experts, "layer_{}_expert_{}_mp_rank_{:02d}_model_states.pt"),
    ]


def _name_missing(cells: _Cells, wanted: Iterable[tuple[int, ...]], name: str) -> list[str]:
    return [name.format(*ranks) for ranks in wanted if ranks not in cells]


def _find_moves(
    files: Files, saved: Mapping[Any, Any], tp: int
) -> tuple[Moves, str, tuple[str, ...]]:  # Any: as saved
    """Return whether another layout can load it, why, and what the converter must be told."""
    if saved.get("param_shapes") is None:
        return "dp", "it was saved without ZeRO, so that every replica loads the same files", ()
    if files.expert and not (saved.get("ds_autoep_layers") or saved.get("autoep_layers")):
        return "never", "DeepSpeed's converter leaves out the experts of its native MoE", ()
    lacks_patterns = saved.get("universal_checkpoint_info") is None
    if lacks_patterns and tp > 1:
        # The converter would put copies of a replicated parameter one after the other, and say that it is done.
        return "never", "it has no universal_checkpoint_info, which says how tensors were cut by tp", ()
    because = "ZeRO loads on its own layout only; DeepSpeed's converter makes a universal checkpoint of it"
    # Stages 1 and 2 fail without that state, unless the converter is told to make an empty one up.
    return "convert", because, ("--inject_missing_state",) if lacks_patterns and not files.model_3 else ()


_PARAMETERS = "zero"
_LEFT_OVER = "tmp"  # where the converter keeps slices until it has merged them
_COMMON = "optimizer_state.pt"
_VALUE = "fp32.pt"
_OF_ADAM = {"exp_avg.pt", "exp_avg_sq.pt"}  # of Adam; a parameter without gradients has none


def is_universal(folder: Folder) -> bool:
    """Tell whether a folder holds a universal checkpoint, or what the converter has begun."""
    files = sort_files(folder.files)
    has_begun = files.first_model or _LEFT_OVER in folder.folders
    return _PARAMETERS in folder.folders and bool(has_begun) and not files.optim


def list_parameters(folder: Folder) -> list[Folder]:
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
    lacks = _OF_ADAM - parameter.files.keys()
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
    message = f"all {len(named)} parameters that the model states name are there, and each file has its end"
    because = "universal checkpoints load on any layout of the same model"
    return Finding("complete", message, step=whole(saved.get("global_steps")), moves_because=because)
