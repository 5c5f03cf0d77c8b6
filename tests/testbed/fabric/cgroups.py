"""Control groups of this machine for the CPU, version 1 or 2: made by name, filled with processes, removed."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import NotPresent

_MOUNT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000  # the kernel's own default, and that of container runtimes


@dataclass(frozen=True, slots=True)
class Hierarchy:
    top: Path
    is_v2: bool


def find_hierarchy() -> Hierarchy | None:
    """Return the hierarchy with the CPU controller; None where there is none that we may use."""
    controllers = _MOUNT / "cgroup.controllers"
    if controllers.is_file() and "cpu" in controllers.read_text().split():
        return Hierarchy(_MOUNT, is_v2=True)
    first = next((_MOUNT / name for name in ("cpu", "cpu,cpuacct") if (_MOUNT / name / "cpu.shares").is_file()), None)
    return Hierarchy(first, is_v2=False) if first else None


def make_group(name: str, cores: float) -> None:
    """Make a group whose processes together get that much of a core in every tenth of a second."""
    hierarchy = find_hierarchy()
    if hierarchy is None:
        raise NotPresent("CPU cannot be taken away here: no control group hierarchy has the CPU controller")
    quota_us = max(int(cores * _PERIOD_US), 1_000)  # the kernel takes no less than a millisecond
    group = hierarchy.top / name
    try:
        if hierarchy.is_v2:
            (hierarchy.top / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        if hierarchy.is_v2:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError as refusal:
        remove_group(name)
        raise NotPresent(f"CPU cannot be taken away here: {refusal}") from refusal


def move_into(name: str, pids: Iterable[int]) -> None:
    """Put processes into a group, or with an empty name back to the top; those that ended are left out."""
    hierarchy = find_hierarchy()
    assert hierarchy is not None, "groups are made before they are filled"
    for pid in pids:
        with suppress(ProcessLookupError):
            (hierarchy.top / name / "cgroup.procs").write_text(str(pid))


def list_groups() -> list[str]:
    hierarchy = find_hierarchy()
    return sorted(entry.name for entry in os.scandir(hierarchy.top) if entry.is_dir()) if hierarchy else []


def remove_group(name: str) -> None:
    """Remove a group; who is still in it goes on outside."""
    hierarchy = find_hierarchy()
    if hierarchy is None or not (hierarchy.top / name).is_dir():
        return
    move_into("", [int(pid) for pid in (hierarchy.top / name / "cgroup.procs").read_text().split()])
    (hierarchy.top / name).rmdir()
