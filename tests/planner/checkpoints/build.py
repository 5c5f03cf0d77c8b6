"""Builders: checkpoints as values, and copies of the real ones with the age that a test needs."""

import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from planner.checkpoints.catalogue import Contents, ReadOptions, read_catalogue
from planner.checkpoints.checkpoint import Catalogue, Checkpoint, SavedLayout

DATA = Path(__file__).parents[2] / "data" / "checkpoints"
NOW_NS = 1_700_000_000_000_000_000
OLD_NS = NOW_NS - 3_600_000_000_000


def copy_real(name: str, target: Path) -> Path:
    """Copy one of the real checkpoints, an hour old."""
    shutil.copytree(DATA / name, target)
    make_old(target)
    return target


def make_old(path: Path, changed_ns: int = OLD_NS) -> None:
    for file in [path, *path.rglob("*")]:
        os.utime(file, ns=(changed_ns, changed_ns), follow_symlinks=False)


def read(
    path: Path,
    now_ns: int = NOW_NS,
    before: Catalogue | None = None,
    contents: Contents | None = None,
    **options: Any,
) -> Catalogue:
    return read_catalogue(path, now_ns, before=before, contents=contents, options=ReadOptions(**options))


def read_one(path: Path, now_ns: int = NOW_NS) -> Checkpoint:
    (only,) = read(path, now_ns).checkpoints
    return only


def save_like_torch(path: Path, value: object) -> None:
    """Write a value as torch.save does, for values without tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr(f"{path.stem}/version", "3\n")


def fake_zero(folder: Path, *, tp: int = 1, pp: int = 1, dp: int = 2, layers: int = 0, **more: object) -> Path:
    """Write a fake of a ZeRO checkpoint: the names and the model states that count, without tensors."""
    shapes = OrderedDict({f"{layer}.w": (2, 2) for layer in range(layers)} or {"w": (2, 2)})
    state = {"dp_world_size": dp, "mp_world_size": tp * pp, "global_steps": 7, "param_shapes": [shapes]}
    for part in range(tp * pp):
        save_like_torch(folder / f"mp_rank_{part:02d}_model_states.pt", state | more)
        for replica in range(dp):
            save_like_torch(folder / f"bf16_zero_pp_rank_{replica}_mp_rank_{part:02d}_optim_states.pt", {})
    for layer in range(layers):
        for part in range(tp):
            save_like_torch(folder / f"layer_{layer:02d}-model_{part:02d}-model_states.pt", {})
    make_old(folder)
    return folder


def checkpoint(step: int | None = 100, **changed: Any) -> Checkpoint:
    what = {"path": f"/c/step-{step}", "format": "dcp", "step": step, "layout": SavedLayout(world=8), "moves": "any"}
    found = {"state": "complete", "reason": "all files are there", "bytes": 8_000_000_000, "files": 9}
    return Checkpoint(**(what | found | {"saved_ns": OLD_NS} | changed))


def zero(step: int = 100, **changed: Any) -> Checkpoint:
    what = {"path": f"/c/global_step{step}", "format": "ds_zero", "layout": SavedLayout(tp=2, pp=1, dp=4, world=8)}
    moves = {"moves": "convert", "moves_because": "ZeRO loads on its own layout only"}
    return checkpoint(step, **(what | moves | changed))


def catalogue(*checkpoints: Checkpoint) -> Catalogue:
    return Catalogue(job="train", folder="/c", seen_ns=NOW_NS, checkpoints=checkpoints)
