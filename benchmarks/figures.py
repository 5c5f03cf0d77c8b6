"""What benchmarks share: figures with unit, floor and goal, where they were measured, and a process and a store."""

import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store

Note = Callable[[str], None]
Made = TypeVar("Made")


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


def in_own_process(task: Callable[..., Made], *arguments: object) -> Made:
    """Return what a task makes in a fresh process: its CPU time and its peak of memory are its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    with TemporaryDirectory(prefix="lockstep-bench-") as folder:
        yield Path(folder)


@contextmanager
def fresh_store(folder: Path, memory_bytes: int = 2 << 30) -> Iterator[Store]:
    """Open a store in a folder and bring it up to date."""
    with open_store(f"chdb://{folder}", memory_bytes=memory_bytes) as store:
        migrate(store, Layout(store.database), now_ns=1)
        yield store


def clocked(call: Callable[[], Made]) -> tuple[Made, float, float]:
    """Return what a call returns, and its seconds by the wall and of the CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = call()
    return made, time.perf_counter() - wall, time.process_time() - cpu


def peak_mb() -> float:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def describe_machine() -> str:
    """Return cores, memory and processor of this machine in one line."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = models[0] if models else platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {processor}, {memory_gib:.0f} GiB, {platform.system()} {platform.machine()}"


def describe_commit() -> str:
    """Return the commit of the working tree, with a mark when it was changed; unknown outside a checkout."""
    try:
        here = Path(__file__).parent
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
