"""The same hang for PyTorch's flight-recorder analyser: dumps of every rank, as its watchdog would have written them.

The job is that of the windows: tensor parallel groups of eight, a ring of each GPU's place over all hosts. One rank
never enqueues its next operation; the others of its host wait in theirs, and all other ranks one operation later, in
their rings. The analyser that is measured is torch.distributed.flight_recorder, as `torchfrtrace` runs it.
"""

import contextlib
import io
import logging
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.analyze_window import GPUS, START_NS
from lockstep.intake.flight_recorder import parse_flight_recorder
from lockstep.intake.readings import Reading

PREFIX = "trace_rank_"
ABSENT = 27
_STEPS = 10  # before the hang; the recorder's buffer holds 2,000 operations, which would be kinder to us
_LAYERS = 4
_WORDS = {"tp": "nccl:all_reduce", "dp": "nccl:_all_gather_base"}

Told = dict[str, Any]  # Any: what a dump holds


@dataclass(frozen=True)
class PeerCost:
    """What their analyser took for a hang, and the ranks that it calls missing."""

    ranks: int
    cpu_s: float
    named: frozenset[int]


def write_dumps(folder: Path, ranks: int) -> None:
    """Write one dump a rank."""
    for rank in range(ranks):
        with (folder / f"{PREFIX}{rank}").open("wb") as file:
            pickle.dump(_dump(rank, ranks), file, protocol=2)


def run_their_analyser(folder: Path, ranks: int) -> PeerCost:
    """Read and analyse the dumps as torchfrtrace does, in this process; importing torch is not counted."""
    from torch.distributed.flight_recorder import fr_trace  # takes seconds, and only this function needs it

    printed = io.StringIO()
    logging.getLogger("Flight Recorder").handlers = [logging.StreamHandler(printed)]
    begin = time.process_time()
    with contextlib.redirect_stdout(printed):
        fr_trace.main([str(folder), "--prefix", PREFIX])
    return PeerCost(ranks, time.process_time() - begin, find_missing(printed.getvalue()))


def find_missing(printed: str) -> frozenset[int]:
    """Return all ranks that their analyser calls missing in some operation.

    >>> sorted(find_missing("missing ranks: {29, 3}, missing ranks: {7}"))
    [3, 7, 29]
    """
    groups = re.findall(r"missing ranks: \{([\d, ]*)\}", printed)
    return frozenset(int(rank) for group in groups for rank in group.split(",") if rank.strip())


def read_dumps(folder: Path) -> Reading:
    """Return the dumps as rows of ours."""
    return parse_flight_recorder({file.name: file.read_bytes() for file in sorted(folder.iterdir())}, "bench")


def _dump(rank: int, ranks: int) -> Told:
    groups = {f"tp{rank // GPUS}": _mates(rank), f"dp{rank % GPUS}": range(rank % GPUS, ranks, GPUS)}
    config = {name: {"name": name, "desc": name, "ranks": str(list(those))} for name, those in groups.items()}
    entries = list(_entries(rank))
    told: Told = {"version": "2.10", "nccl_version": "2.27.3", "pg_config": config, "entries": entries}
    return told | {"pg_status": _status(entries)}


def _mates(rank: int) -> range:
    first = rank // GPUS * GPUS
    return range(first, first + GPUS)


def _entries(rank: int) -> Iterator[Told]:
    """Yield what a rank has enqueued: whole steps, then as much of the next one as it came to."""
    counts = {"tp": 0, "dp": 0}
    step = ["tp"] * _LAYERS + ["dp"] * 2
    whole = step * _STEPS
    if rank == ABSENT:
        last: list[str] = []
    else:
        last = step[:1] if rank in _mates(ABSENT) else step[: _LAYERS + 1]
    for number, kind in enumerate([*whole, *last]):
        counts[kind] += 1
        is_open = number == len(whole) + len(last) - 1 and bool(last)
        yield _entry(rank, number, kind, counts[kind], "started" if is_open else "completed")


def _entry(rank: int, number: int, kind: str, seq: int, state: str) -> Told:
    group = f"tp{rank // GPUS}" if kind == "tp" else f"dp{rank % GPUS}"
    told: Told = {"record_id": number, "pg_id": 0 if kind == "tp" else 1, "process_group": (group, group)}
    told |= {"collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": False, "frames": []}
    told |= {"profiling_name": _WORDS[kind], "time_created_ns": START_NS + 100_000_000 * number, "state": state}
    told |= {"input_sizes": [[4096, 4096]], "input_dtypes": ["BFloat16"], "timeout_ms": 600_000}
    return told | {"output_sizes": [[4096, 4096]], "output_dtypes": ["BFloat16"], "retired": state == "completed"}


def _status(entries: list[Told]) -> Told:
    found: Told = {}
    for entry in entries:
        status = found.setdefault(str(entry["pg_id"]), {"last_completed_collective": 0})
        status["last_enqueued_collective"] = status["last_started_collective"] = entry["collective_seq_id"]
        if entry["state"] == "completed":
            status["last_completed_collective"] = entry["collective_seq_id"]
    return found
