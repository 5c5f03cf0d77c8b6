"""What a benchmark reports: figures with unit, floor and goal, and where and on what they were measured."""

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Note = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """One measured number. `met` says whether the floor holds; without a floor there is nothing to meet."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    goal: float | None = None
    higher_is_better: bool = True
    reference: str = ""

    @property
    def met(self) -> bool | None:
        if self.floor is None:
            return None
        return self.value >= self.floor if self.higher_is_better else self.value <= self.floor


@dataclass(frozen=True)
class Report:
    """All figures of one run."""

    bench: str
    commit: str
    machine: str
    figures: tuple[Figure, ...]

    def as_json(self) -> dict[str, Any]:
        figures = [asdict(figure) | {"met": figure.met} for figure in self.figures]
        for figure in figures:
            del figure["higher_is_better"]
        return {"bench": self.bench, "commit": self.commit, "machine": self.machine, "figures": figures}


def describe_machine() -> str:
    """Return cores, memory and processor of this machine in one line."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} x {_processor()}, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}"


def describe_commit() -> str:
    """Return the commit of the working tree, with a mark when it was changed; unknown outside a checkout."""
    try:
        here = Path(__file__).parent
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
