"""The plugin's claim: what a callback costs the thread that NCCL calls it on, beside the least any recorder pays.

nccl_plugin/tests/bench.c plays the callbacks and the limit (one reading of the processor's counter and one store of
64 bytes into a ring of the same size, called in the same way) in turns on the same threads, so that a ratio compares
two figures of one run. Time is the threads' own CPU time: four threads may share fewer cores, and neighbours do not
count.
"""

import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Note
from lockstep.errors import NotPresent
from tests.testbed.ranks import build_ranks

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only the parent of a directory of our own
_FLOOR, _GOAL = 4.0, 2.0  # times the limit
_NAMES = {
    "operation": "an operation is enqueued",
    "transfer": "a transfer",
    "unsampled-step": "a step that is not sampled",
    "sampled-step": "a sampled step",
    "kernel-channel": "a kernel's channel",
    "all-reduce": "all of an all-reduce",
}
_Costs = dict[tuple[str, int], list[tuple[float, float]]]


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return nanoseconds per callback of every kind on one thread and on four, and the worst ratio to the limit."""
    rounds = 30 if quick else 200
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        note("building the plugin and what plays NCCL against it")
        build_ranks(Path(folder))
        note(f"playing {rounds} rounds of callbacks, on one thread and on four")
        costs = play(Path(folder), rounds)
    return tuple(_figures(costs))


def play(folder: Path, rounds: int) -> _Costs:
    """Return nanoseconds per callback and of the limit, one pair per round, by kind and number of threads."""
    with _ring_directory() as rings:
        output = _run(
            str(folder / "bench"), str(folder / "liblockstep-nccl.so"), str(rounds), LOCKSTEP_RING_DIR=rings
        )
    costs: _Costs = defaultdict(list)
    for line in output.splitlines():
        kind, threads, callback_ns, limit_ns = line.split()
        costs[kind, int(threads)].append((float(callback_ns), float(limit_ns)))
    return dict(costs)


@contextmanager
def _ring_directory() -> Iterator[str]:
    """Lend a directory in shared memory, where ring files are in production, or else wherever there is room."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=parent) as folder:
        yield folder


def _run(*command: str, **environment: str) -> str:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    done = subprocess.run(command, capture_output=True, text=True, env=ours | environment)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()
        raise NotPresent(f"the plugin cannot be measured here: {command[0]}: {lines[-1] if lines else 'no output'}")
    return done.stdout


def _figures(costs: _Costs) -> Iterator[Figure]:
    worst: dict[int, float] = {}
    for (kind, threads), pairs in sorted(
        costs.items(), key=lambda item: (item[0][1], list(_NAMES).index(item[0][0]))
    ):
        callback, limit = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(ours / least for ours, least in pairs)
        worst[threads] = max(ratio, worst.get(threads, 0.0))
        name = f"{_NAMES[kind]}, {_on(threads)}"
        beside = f"limit {limit:.1f} ns, {ratio:.2f} times"
        yield Figure(name, callback, "ns per callback", _FLOOR * limit, _GOAL * limit, False, beside)
    for threads, ratio in worst.items():
        name = f"dearest kind, {_on(threads)}"
        yield Figure(name, ratio, "times the limit", _FLOOR, _GOAL, False, "counter and 64-byte store")


def _on(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
