# ruff: noqa: S108, T201 -- a program for people, and shared memory is where ring files live
"""The tests on a machine with a GPU: `make gpu-test`.

Needs Python's standard library, nvcc, NCCL and CUDA's MPS, and root for the traces. Exit code 0 means that every run
did what it should; figures are printed, not judged.
"""

import argparse
import json
import lzma
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lab import Lab, LabError, SharedGpu, build_rank, find_library
from load import cases_of, describe, run_case
from overhead import Experiment, Samples, measure, plan_beside, plan_levels, table_of
from traces import SCENARIOS, record, write_trace

PARTS = ("load", "beside", "levels", "traces")
TOLERATED = 3  # crashes, as long as other people's plugins are in the process


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument("--nccl", action="append", help="a libnccl.so.2, or one packed as .so.xz; may be given again")
    parser.add_argument(
        "--foreign", action="append", default=[], help="NAME=PATH of another profiler plugin to measure"
    )
    parser.add_argument("--processes", type=int, default=12, help="pairs of processes per NCCL for the overhead")
    parser.add_argument("--rounds", type=int, default=16, help="rounds in each pair; the first one warms up")
    parser.add_argument("--seconds", type=float, default=3600, help="start nothing new after this time")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-test"), help="where results go")
    return parser.parse_args(words)


def unpack_library(path: str, folder: Path) -> str:
    """The library itself; a packed one is unpacked into a folder named after it."""
    if not path.endswith(".xz"):
        return path
    target = folder / Path(path).name.removesuffix(".so.xz") / "libnccl.so.2"
    target.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path) as packed, open(target, "wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 22)
    return str(target)


class Kit:
    """Runs the parts, says a line about each run, and counts what failed."""

    def __init__(self, arguments: argparse.Namespace, lab: Lab, libraries: Sequence[str]) -> None:
        self._arguments, self._lab, self._libraries = arguments, lab, libraries
        self._deadline = time.monotonic() + arguments.seconds
        self.failures = 0

    def run(self) -> None:
        """All parts that were asked for, or all there are."""
        for part in self._arguments.part or PARTS:
            {"load": self._load, "beside": self._beside, "levels": self._levels, "traces": self._traces}[part]()

    def _has_time(self, what: str) -> bool:
        if time.monotonic() < self._deadline:
            return True
        print(f"{what}: NOT RUN, the time is over", flush=True)
        self.failures += 1
        return False

    def _load(self) -> None:
        for library in self._libraries:
            for case in cases_of(library):
                if not self._has_time(case.name):
                    continue
                outcome, complaints = run_case(self._lab, case)
                self.failures += bool(complaints)
                print(describe(case, outcome, complaints), flush=True)
                shutil.rmtree(outcome.folder, ignore_errors=True)

    def _beside(self) -> None:
        named = (each.partition("=") for each in self._arguments.foreign)
        foreign = {name: Path(path).resolve() for name, _, path in named}
        for library in self._libraries:
            self._measure(library, plan_beside(self._lab.folder, foreign), tolerated=TOLERATED if foreign else 0)

    def _levels(self) -> None:
        for library in self._libraries:
            for kernel in ("off", "on"):
                self._measure(library, plan_levels(self._lab.folder, kernel))

    def _measure(self, library: str, experiment: Experiment, tolerated: int = 0) -> None:
        """One pair of processes after another, then the table of all that finished."""
        kept: list[Samples] = []
        failed = 0
        for number in range(self._arguments.processes):
            if kept and time.monotonic() > self._deadline:
                break  # fewer pairs make the intervals wider, not wrong
            outcome, samples = measure(self._lab, library, experiment, number, self._arguments.rounds)
            shutil.rmtree(outcome.folder, ignore_errors=True)
            kept += [samples] if samples else []
            if not outcome.succeeded:
                failed += 1
                said = f"FAILED with {outcome.codes}, measured {bool(samples)}: {outcome.errors}"
                print(f"{outcome.name}: {said}", flush=True)
        self.failures += failed > tolerated or not kept
        name = f"{Path(library).parent.name} {experiment.title}".replace(",", "").replace(" ", "-")
        (self._arguments.out / f"{name}.json").write_text(json.dumps(kept))
        table = table_of(experiment, kept) if kept else ""
        print(f"\n{library}, {len(kept)} pairs of processes\n{table}", flush=True)

    def _traces(self) -> None:
        for scenario in SCENARIOS:
            if not self._has_time(scenario.name):
                continue
            outcome = record(self._lab, self._libraries[0], scenario)
            if outcome.succeeded:
                print(write_trace(scenario, outcome, self._arguments.out), flush=True)
            else:
                self.failures += 1
                print(f"{scenario.name}: FAILED with {outcome.codes}: {outcome.errors}", flush=True)
            shutil.rmtree(outcome.folder, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    """Prepares the machine, runs, and says how many runs failed."""
    arguments = read_arguments(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lockstep-gpu-", dir=shared_memory) as folder:
        try:
            libraries = [unpack_library(path, Path(folder)) for path in arguments.nccl or [find_library()]]
            build_rank()
            with SharedGpu() as gpu:
                print(f"{os.cpu_count()} cores, Linux {platform.release()}, NCCL: {', '.join(libraries)}", flush=True)
                kit = Kit(arguments, Lab(Path(folder), gpu.environment), libraries)
                kit.run()
        except LabError as problem:
            print(f"gpu-test: {problem}")
            return 2
    print("all runs did what they should" if not kit.failures else f"{kit.failures} runs FAILED")
    return 1 if kit.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
