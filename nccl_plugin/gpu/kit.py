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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import Lab, LabError, Outcome, Run, SharedGpu, build_rank, find_library, lockstep_side
from overhead import Experiment, Samples, measure, plan_beside, plan_levels, table_of
from rings import FUNCS, LEVELS, TRANSFER_KIND, NotARing, Ring, Row
from traces import SCENARIOS, record, write_trace

PARTS = ("load", "beside", "levels", "traces")
TOLERATED = 3  # crashes, as long as other people's plugins are in the process
MIB = 1 << 20
# Everything that a training job asks of NCCL, a few times each, with sizes of one and of many network steps.
MIXED_WORDS = (
    "AllReduce=8:20", f"AllReduce={MIB}:5", f"AllGather={MIB}:3", f"ReduceScatter={MIB}:3", f"Broadcast={MIB}:3",
    f"Ring={MIB}:3", f"AllToAll={MIB}:3", f"graph={MIB}:3", f"split={MIB}:3", f"AllReduce={8 * MIB}:3",
)  # fmt: skip
# NCCL 2.29 and newer turn a broadcast into an AllGatherV, for which no Coll event is made.
FIRST_WITHOUT_BROADCAST_EVENTS = 22900
# NCCL 2.27 tells of the transfers of the first peer only when one group sends to, or receives from, several.
FIRST_PEER_ONLY = range(22700, 22800)
COLL, P2P, PROXY_OP, PROXY_STEP, KERNEL_CHANNEL = 0x2, 0x4, 0x8, 0x10, 0x40
OPERATIONS_MASK = COLL | P2P
NEEDED_BITS = {
    "off": COLL,
    "operations": OPERATIONS_MASK,
    "transfers": OPERATIONS_MASK | PROXY_OP,
    "steps": OPERATIONS_MASK | PROXY_OP | PROXY_STEP,
    "trace": OPERATIONS_MASK | PROXY_OP | PROXY_STEP,
}


@dataclass(frozen=True)
class LoadCase:
    """One run of the mixed words."""

    library: str
    ranks: int
    settings: Mapping[str, str]

    @property
    def level(self) -> str:
        return self.settings.get("LOCKSTEP_DETAIL", "steps")

    @property
    def name(self) -> str:
        named = {"LOCKSTEP_DETAIL": "", "LOCKSTEP_KERNEL": "kernel-"}
        settings = [named[key] + value for key, value in self.settings.items() if key in named]
        return "-".join(["load", Path(self.library).parent.name, f"{self.ranks}ranks", *settings])


def cases_of(library: str) -> list[LoadCase]:
    """2, 4 and 8 ranks as users start them, then every level and both answers about kernel times."""
    plain = {"LOCKSTEP_BUDGET": "0"}
    cases = [LoadCase(library, ranks, plain) for ranks in (2, 4, 8)]
    cases += [LoadCase(library, 2, plain | {"LOCKSTEP_DETAIL": level}) for level in LEVELS]
    return [*cases, LoadCase(library, 4, plain | {"LOCKSTEP_KERNEL": "off"})]


def run_case(lab: Lab, case: LoadCase) -> tuple[Outcome, list[str]]:
    def words(rank: int, folder: Path) -> list[str]:
        return [lockstep_side("plugin", case.library, folder, rank, case.settings), *MIXED_WORDS]

    outcome = lab.run(Run(case.name, case.ranks, words, timeout_s=40))
    if not outcome.succeeded:
        return outcome, [f"ranks ended with {outcome.codes}: {outcome.errors[-400:]}"]
    try:
        rings = outcome.rings()
    except NotARing as problem:
        return outcome, [str(problem)]
    if len(rings) != case.ranks:
        return outcome, [f"{len(rings)} ring files of {case.ranks} ranks"]
    complaints = [
        f"rank {rank}: {complaint}"
        for rank, ring in enumerate(rings)
        for complaint in complaints_about(case.level, ring, calls_of(outcome, rank))
    ]
    return outcome, complaints


def calls_of(outcome: Outcome, rank: int) -> dict[str, int]:
    calls = [line["calls"] for line in outcome.lines[rank] if "calls" in line]
    assert isinstance(calls[0], dict)
    return calls[0]


def complaints_about(level: str, ring: Ring, calls: Mapping[str, int]) -> list[str]:
    """Where the ring file contradicts what the rank did."""
    status = ring.status()
    complaints = []
    if LEVELS[status["level"]] != level:
        complaints.append(f"level {LEVELS[status['level']]} instead of {level}")
    if status["mask"] & NEEDED_BITS[level] != NEEDED_BITS[level]:
        complaints.append(f"mask {status['mask']:#x} lacks some of {NEEDED_BITS[level]:#x}")
    if bool(status["mask"] & KERNEL_CHANNEL) != ring.kernel_channels:
        complaints.append(f"mask {status['mask']:#x} while kernel_channels is {ring.kernel_channels}")
    troubles = ("lowered", "refused_comms", "refused_rows", "overwritten", "foreign", "shared_threads")
    complaints += [f"{name} is {status[name]}" for name in troubles if status[name]]
    complaints += _counts(ring, calls if level != "off" else dict.fromkeys(calls, 0))
    return complaints + _ends(level, ring)


def _counts(ring: Ring, calls: Mapping[str, int]) -> list[str]:
    silent = {"Broadcast"} if ring.nccl_version >= FIRST_WITHOUT_BROADCAST_EVENTS else set()
    seen = ring.enqueued_by_func()
    if ring.overwritten_records():
        return []  # too many to count; the live table is compared all the same
    wanted = {func: 0 if func in silent else calls.get(func, 0) for func in FUNCS[1:]}
    return [f"{seen[func]} {func} enqueued of {wanted[func]}" for func in wanted if seen[func] != wanted[func]]


def _ends(level: str, ring: Ring) -> list[str]:
    complaints = [
        f"{row.func} on communicator {row.comm}, peer {row.peer}: {row.done} of {row.enqueued} done"
        for row in ring.rows()
        if level in ("transfers", "steps", "trace") and row.enqueued != row.done and not _is_beyond_sight(ring, row)
    ]
    if ring.open_transfers():
        complaints.append(f"{ring.open_transfers()} transfers are open")
    if level in ("transfers", "steps") and not any(True for _ in ring.records(TRANSFER_KIND)):
        complaints.append("no transfer was recorded")
    return complaints


def _is_beyond_sight(ring: Ring, row: Row) -> bool:
    """A send to oneself has no transfer and, in some releases, no kernel event: its end cannot be seen."""
    is_later_peer = ring.nccl_version in FIRST_PEER_ONLY and row.peer >= 0 and row.started == row.done
    if is_later_peer and not ring.kernel_channels:
        return True
    return any(known.index == row.comm and known.rank == row.peer for known in ring.comms())


def describe(case: LoadCase, outcome: Outcome, complaints: Sequence[str]) -> str:
    verdict = "ok" if not complaints else "FAILED: " + "; ".join(complaints)
    return f"{case.name}: {outcome.seconds:.1f} s, {verdict}"


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
