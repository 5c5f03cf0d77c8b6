"""Is a torch DCP checkpoint whole? Its `.metadata`, written last, names every file with the bytes that must be in it.

Megatron's torch_dist adds `common.pt` (iteration, arguments) and a `metadata.json`, which is written after all else.
"""

import json
import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.errors import BadInput
from lockstep.hostile_files import MOST_BYTES
from planner.checkpoints.checkpoint import (
    Finding,
    Folder,
    Pieces,
    SavedLayout,
    find_damaged,
    incomplete,
    name_some,
    whole,
)
from planner.checkpoints.torch_file import StandIn, is_safetensors, is_torch_record, read_metadata, read_saved

METADATA = ".metadata"
_SHARD = re.compile(r"__(\d+)_\d+\.distcp")
_OWN_METADATA = re.compile(r"__\d+\.metadata")
_ITERATION = re.compile(r"iter_\d{7}")
_BACKEND = "metadata.json"
_COMMON = "common.pt"
_MOST_BACKEND_BYTES = 1 << 20
_RESHARDS = "DCP cuts it anew for any layout while loading"
# Megatron's arguments, and our words for them.
_DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "world": "world_size",
}
# How Megatron saved the state of its distributed optimizer, where that binds the layout.
_ONLY_DP = ("dp_reshardable", "dp_zero_gather_scatter", "fully_sharded_bucket_space")


def is_dcp(folder: Folder) -> bool:
    """Tell whether a folder is a DCP checkpoint, or one that was begun."""
    return any(
        name.startswith(METADATA) or _SHARD.fullmatch(name) or _OWN_METADATA.fullmatch(name) for name in folder.files
    )


def is_torch_dist(folder: Folder) -> bool:
    """Tell whether a folder holds what Megatron adds to DCP, or is named as Megatron names its folders."""
    is_named = bool(_ITERATION.fullmatch(folder.path.name))
    return _COMMON in folder.files or ((is_named or _BACKEND in folder.files) and is_dcp(folder))


def check_dcp(folder: Folder) -> Finding:
    """Return whether every file that `.metadata` names is there with all its bytes."""
    layout = SavedLayout(world=_count_writers(folder.files))
    if METADATA not in folder.files:
        own = sum(bool(_OWN_METADATA.fullmatch(name)) for name in folder.files)
        if not own:
            return incomplete(f"has no {METADATA}, which is written last", layout=layout)
        message = f"{own} ranks wrote a {METADATA} each, and nothing says how many there should be"
        return Finding("unverified", message, layout)
    try:
        pieces = read_pieces(folder)
    except BadInput as error:
        return incomplete(str(error), layout=layout)
    ends = {name: max(map(sum, zip(held[::2], held[1::2], strict=True))) for name, held in pieces.items()}
    missing = [name for name in ends if name not in folder.files]
    if missing:
        return incomplete(f"{name_some(missing)} named in {METADATA} is not there", layout=layout)
    for name, end in ends.items():
        if folder.files[name].bytes < end:
            has = folder.files[name].bytes
            return incomplete(f"{name} has {has} bytes, and {METADATA} says at least {end}", layout=layout)
    if (foreign := _find_foreign(folder, pieces)) is not None:
        return Finding("unreadable", foreign, layout)
    message = f"all {len(ends)} files that {METADATA} names are there with all their bytes"
    layout = SavedLayout(world=_count_writers(ends))
    return Finding("complete", message, layout, moves_because=_RESHARDS, pieces=pieces)


def check_torch_dist(folder: Folder) -> Finding:
    """Return the same for Megatron's format, and its layout and iteration from `common.pt`."""
    found = check_dcp(folder)
    problem = None if found.state != "complete" else _find_problem(folder)
    if found.state != "complete" or problem:
        return incomplete(problem, layout=found.layout) if problem else found
    try:
        saved = read_saved(folder.file(_COMMON), folder.files[_COMMON].bytes)
    except BadInput as error:
        return Finding("unverified", f"the iteration and the layout are not known: {error}", found.layout)
    because = _find_bound(saved)
    return Finding(
        "complete",
        f"{found.reason}, and so are {_COMMON} and {_BACKEND}",
        _find_layout(saved) or found.layout,
        whole(saved.get("iteration")),
        "dp" if because else "any",
        because or _RESHARDS,
        pieces=found.pieces,
    )


def read_pieces(folder: Folder) -> dict[str, Pieces]:
    """Return where in each file that `.metadata` names its pieces of the state lie, or raise BadInput."""
    path, size = folder.file(METADATA), folder.files[METADATA].bytes
    if size > MOST_BYTES:
        raise BadInput(f"{METADATA} has {size} bytes, more than the {MOST_BYTES} that are read here")
    try:
        held = read_metadata(METADATA, path.read_bytes())
    except OSError as error:
        raise BadInput(f"{METADATA} cannot be read: {error.strerror}") from None
    stored = getattr(held, "storage_data", None)
    if not isinstance(stored, dict) or not stored:
        raise BadInput(f"{METADATA} names no file")
    return _sort_pieces(stored.values())


def _sort_pieces(pieces: Iterable[object]) -> dict[str, Pieces]:
    found: dict[str, array[int]] = {}  # of a job of 1,000 ranks there are millions
    for piece in pieces:
        held = vars(piece) if isinstance(piece, StandIn) else {}
        name, offset, length = held.get("relative_path"), held.get("offset"), held.get("length")
        if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
            raise BadInput(f"{METADATA} does not say where a piece of the state lies")
        if "/" in name or not 0 <= offset < 1 << 62 or not 0 <= length < 1 << 62:
            raise BadInput(f"{METADATA} names {length} bytes at {offset} of {name!r}, which cannot be in this folder")
        if held.get("transform_descriptors"):  # compressed, say: only where it ends is known
            offset, length = offset + length, 0
        found.setdefault(name, array("q")).extend((offset, length))
    return dict(found)


def _find_foreign(folder: Folder, pieces: Mapping[str, Pieces]) -> str | None:
    """Return which file torch has not written, from the begin and the end of its first and its last piece."""
    for name, held in pieces.items():
        try:
            with folder.file(name).open("rb") as file:
                sound = is_safetensors(file) or all(
                    not held[i + 1] or is_torch_record(file, held[i], held[i + 1]) for i in (0, -2)
                )
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if not sound:
            return f"{name} has the bytes that {METADATA} says, and they are no records of torch"
    return None


def _count_writers(names: Iterable[str]) -> int | None:
    ranks = [int(shard[1]) for name in names if (shard := _SHARD.fullmatch(name))]
    return max(ranks) + 1 if ranks else None


def _find_problem(folder: Folder) -> str | None:
    for name in (_BACKEND, _COMMON):
        if name not in folder.files:
            return f"has no {name}, though it is a checkpoint of Megatron"
    backend = _read_backend(folder)
    if backend != "torch_dist":
        return f"{_BACKEND} names the backend {backend!r} and not torch_dist"
    return find_damaged(folder, [_COMMON])


def _read_backend(folder: Folder) -> object:
    if folder.files[_BACKEND].bytes > _MOST_BACKEND_BYTES:
        return None
    try:
        message = json.loads(folder.file(_BACKEND).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return message.get("sharded_backend") if isinstance(message, dict) else None


def _find_layout(saved: Mapping[Any, Any]) -> SavedLayout | None:  # Any: what a job saved
    arguments = saved.get("args")
    held = vars(arguments) if isinstance(arguments, StandIn) else {}
    sizes = {ours: size for ours, theirs in _DEGREES.items() if (size := whole(held.get(theirs)))}
    return SavedLayout(**sizes) if sizes else None


def _find_bound(saved: Mapping[Any, Any]) -> str | None:  # Any: what a job saved
    content = saved.get("content_metadata")
    kind = content.get("distrib_optim_sharding_type") if isinstance(content, dict) else None
    if kind not in _ONLY_DP:
        return None
    return f"its optimizer was saved as {kind}, which loads with another dp only, not with another tp, pp or ep"
