"""Which GPU a rank uses, by NVML's number on the host, from what its process was given to see."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_LEAST_UUID = 8  # letters of an abbreviated UUID that we take for one GPU: "GPU-" and four more


def find_gpu(
    environment: Mapping[str, str], local_rank: int | None, uuids: Sequence[str], is_contained: bool
) -> int | None:
    """Return the index of the rank's GPU, or None where it cannot be told.

    CUDA_VISIBLE_DEVICES lists numbers or (abbreviated) UUIDs, and a rank takes the one at its local rank; a launcher
    that shows each rank its own GPU only leaves no choice. `uuids` are the host's GPUs in NVML's order, which is that
    of their PCI addresses; equal GPUs have the same order in CUDA. A container may number its GPUs anew.

    >>> find_gpu({"CUDA_VISIBLE_DEVICES": "2,3"}, 1, [], False), find_gpu({}, None, [], False)
    (3, None)
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    chosen = _choose([each.strip() for each in visible.split(",")] if visible else [], local_rank, uuids)
    if chosen is None:
        return None
    if not chosen.isdecimal():
        return _by_uuid(chosen, uuids)
    shown = environment.get("NVIDIA_VISIBLE_DEVICES", "all") if is_contained else "all"
    return _on_the_host(int(chosen[:4]), shown, uuids)


def host_gpus(root: Path) -> list[str]:
    """Return the UUIDs of the host's GPUs in NVML's order; empty where the driver does not list them."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            told = re.search(r"^GPU UUID:\s*(\S+)", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            told = None
        found.append(told[1] if told else "")
    return found


def _choose(visible: list[str], local_rank: int | None, uuids: Sequence[str]) -> str | None:
    if len(visible) == 1:
        return visible[0]
    if visible:
        return visible[local_rank] if local_rank is not None and local_rank < len(visible) else None
    if len(uuids) == 1:
        return "0"
    return None if local_rank is None or (uuids and local_rank >= len(uuids)) else str(local_rank)


def _on_the_host(number: int, shown: str, uuids: Sequence[str]) -> int | None:
    """Return what a container's number is on the host; `shown` is what its runtime was told to show."""
    if shown == "all":
        return number if number <= 0xFFFF else None
    places = [int(each[:4]) if each.isdecimal() else _by_uuid(each, uuids) for each in shown.split(",")]
    known = sorted(place for place in places if place is not None)
    return known[number] if len(known) == len(places) and number < len(known) else None


def _by_uuid(uuid: str, uuids: Sequence[str]) -> int | None:
    if not uuid.startswith("GPU-") or len(uuid) < _LEAST_UUID:
        return None  # a part of a GPU (MIG), "void", "none"
    places = [place for place, each in enumerate(uuids) if each.startswith(uuid)]
    return places[0] if len(places) == 1 else None
