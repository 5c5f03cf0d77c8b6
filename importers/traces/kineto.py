"""Kineto traces of PyTorch's profiler, a file per rank: NCCL's operations as the GPU ran them.

Start and end are those of the kernel on the GPU, on the clock of the profiler. What a trace leaves open:

- The host is not in it: every rank stands as a host of its own, `rank-9`, as in dumps of the Flight Recorder.
- Which operation a kernel is comes from what PyTorch notes beside the kernel, else from the call that launched it.
  The kernel's own name is that of the program NCCL started with, often not of the operation it ran; algorithm and
  protocol in it are not believed either.
- Old traces, such as those of 2023, name no process group. Then `comm` stands for the stream of that rank alone,
  `rank` is the rank in the job, there is no row in `comms`, and nothing can be compared between ranks.
- Where no number is told, operations are counted as they began, and the count may not enter a comparison.
- A launch that is not in the trace was before it: the operation is enqueued when it starts at the latest.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from importers.traces.flight_recorder import DTYPES, FUNCS, ProcessGroup, nccl_dtype, size_of
from importers.traces.kineto_trace import CallEvent, KernelEvent, Launch, ProcessInfo, Trace, read_kineto
from importers.traces.readings import Loose, Reading, Row, Text, refuse_twice, validated
from lockstep.errors import BadInput

# What PyTorch's ProcessGroupNCCL calls its operations beside kernels, where FUNCS has not the same word.
_WORDS = FUNCS | {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "_allgather_base": "AllGather",
    "allgather_into_tensor_coalesced": "AllGather",
    "all_to_allv": "AlltoAll",
    "barrier": "AllReduce",
}
# How a trace writes types of tensors that were handed to a call.
_C_TYPES = {
    "float": "Float",
    "double": "Double",
    "int": "Int",
    "long": "Long",
    "long int": "Long",
    "unsigned char": "Byte",
    "signed char": "Char",
    "bool": "Bool",
    "c10::Half": "Half",
    "c10::BFloat16": "BFloat16",
    "c10::Float8_e4m3fn": "Float8_e4m3fn",
    "c10::Float8_e5m2": "Float8_e5m2",
}
_COUNTED_BY_OUTPUT = ("ReduceScatter", "Recv")  # NCCL counts what comes out of these
_U64 = 1 << 64


class Noted(Loose):
    """What PyTorch notes beside a kernel, or beside the call that launched it."""

    model_config = ConfigDict(populate_by_name=True)

    word: Text = Field(alias="Collective name", min_length=1)
    dtype: str = ""
    sent: int = Field(-1, alias="In msg nelems", lt=_U64)
    received: int = Field(-1, alias="Out msg nelems", lt=_U64)
    group_size: int = Field(0, alias="Group size", ge=-1, lt=1 << 31)
    group: Text = Field("", alias="Process Group Name")
    group_desc: Text = Field("", alias="Process Group Description")
    group_ranks: str | None = Field(None, alias="Process Group Ranks")
    seq: int | None = Field(None, alias="Seq", ge=0, lt=_U64)
    source: int | None = Field(None, alias="Src Rank")
    destination: int | None = Field(None, alias="Dst Rank")


@dataclass(frozen=True)
class Operation:
    """What a kernel ran, as far as it is told."""

    func: str
    size: int | None
    dtype: str | None
    group: ProcessGroup | None
    peer: int  # -1: none; -2: it has one, and nothing tells which
    seq: int | None


def parse_kineto(files: Iterable[tuple[str, Iterable[bytes]]], job: str) -> Reading:
    """Return communicators and operations of the ranks whose traces, name and bytes, these are."""
    reading = Reading()
    ranks: list[tuple[int, str]] = []
    for name, pieces in files:
        trace = read_kineto(name, pieces)
        if trace.info is None:
            raise BadInput(f"{name}: distributedInfo is missing, so that nothing tells of which rank it is")
        ranks.append((trace.info.rank, name))
        refuse_twice(ranks)
        _add_rank(reading, trace, trace.info, job)
    return reading


def _add_rank(reading: Reading, trace: Trace, info: ProcessInfo, job: str) -> None:
    launches = trace.launches()
    counts: Counter[tuple[object, ...]] = Counter()
    seen: set[tuple[object, ...]] = set()
    comms: dict[int, Row] = {}
    for kernel in sorted(trace.kernels, key=lambda kernel: kernel.ts):
        launch = launches.get(kernel.correlation)
        operation = _operation(trace, kernel, launch, info)
        if operation is None:
            reading.unread["kernels were left out, because nothing tells which operation they ran"] += 1
            continue
        if operation.size is None:
            reading.unread["operations were left out, because nobody can say how much they moved"] += 1
            continue
        if operation.peer == -2:
            reading.unread["operations were left out, because nothing tells who was on the other side"] += 1
            continue
        row = _row(trace, kernel, launch, operation, info, job)
        key = (row["comm"], operation.func, operation.peer)
        counts[key] += 1
        row["seq"] = counts[key] - 1 if operation.seq is None else operation.seq
        if (*key, row["seq"]) in seen:
            reading.unread["operations were left out, because others of the same group have their number"] += 1
            continue
        seen.add((*key, row["seq"]))
        reading.add("collectives", row)
        _note_comm(comms, row, operation, info)
    for comm in comms.values():
        reading.add("comms", comm)


def _operation(trace: Trace, kernel: KernelEvent, launch: Launch | None, info: ProcessInfo) -> Operation | None:
    """Return what a kernel ran: as noted beside it, else beside a call around its launch, the innermost first."""
    calls = trace.calls_around(launch) if launch else []
    for args in (kernel.args, *(call.args for call in calls)):
        if "Collective name" in args:
            return _noted_operation(validated(Noted, args, f"{trace.file}: kernel at {kernel.ts} us"), info)
    named = (call for call in calls if call.name.startswith("nccl:"))
    return next((_called_operation(call) for call in named), None)


def _noted_operation(noted: Noted, info: ProcessInfo) -> Operation:
    func = _WORDS.get(noted.word, noted.word)
    name, width = DTYPES.get(noted.dtype, (None, None))
    values = noted.received if func in _COUNTED_BY_OUTPUT else noted.sent
    size = values * width if width and 0 <= values * width < _U64 else None
    group = _group(noted, info)
    return Operation(func, size, name, group, _peer(noted, func, group), noted.seq)


def _peer(noted: Noted, func: str, group: ProcessGroup | None) -> int:
    """Return the rank on the other side inside the group; the trace tells its rank in the job."""
    if func not in ("Send", "Recv"):
        return -1
    other = noted.destination if func == "Send" else noted.source
    return group.ranks.index(other) if group and other in group.ranks else -2


def _group(noted: Noted, info: ProcessInfo) -> ProcessGroup | None:
    """Return the process group where all its ranks are known; PyTorch shortens long lists with dots."""
    if not noted.group:
        return None
    configured = next((one for one in info.pg_config if one.pg_name == noted.group), None)
    everybody = tuple(range(info.world_size))
    if configured is not None:
        ranks = configured.ranks or everybody
    elif noted.group_ranks and re.fullmatch(r"\[\d{1,9}(, ?\d{1,9})*\]", noted.group_ranks):
        ranks = tuple(int(rank) for rank in noted.group_ranks[1:-1].split(","))
    elif noted.group_size == info.world_size:
        ranks = everybody
    else:
        return None
    desc = noted.group_desc or (configured.pg_desc if configured else "")
    return ProcessGroup(name=noted.group, desc=desc, ranks=ranks) if info.rank in ranks else None


def _called_operation(call: CallEvent) -> Operation:
    """Return what an `nccl:` call of old traces tells: the tensors that went in."""
    word = call.name.removeprefix("nccl:").partition(" ")[0]
    func = _WORDS.get(word, word)
    shapes, types = call.args.get("Input Dims"), call.args.get("Input type")
    dtypes = [_C_TYPES.get(str(one), str(one)) for one in types] if isinstance(types, list) else []
    is_plain = isinstance(shapes, list) and all(
        isinstance(one, list) and all(isinstance(length, int) and length >= 0 for length in one) for one in shapes
    )
    size = size_of(shapes, dtypes) if isinstance(shapes, list) and is_plain else None
    size = None if func in _COUNTED_BY_OUTPUT else size
    return Operation(func, size, nccl_dtype(dtypes), None, -2 if func in ("Send", "Recv") else -1, None)


def _row(
    trace: Trace, kernel: KernelEvent, launch: Launch | None, operation: Operation, info: ProcessInfo, job: str
) -> Row:
    group = operation.group
    start_ns = trace.unix_ns(kernel.ts)
    enqueue_ns = trace.unix_ns(launch.ts) if launch else start_ns
    captured = bool(kernel.args.get("graph id") or kernel.args.get("graph node id"))
    row: Row = {"host": f"rank-{info.rank}", "job": job, "attempt": 0, "func": operation.func, "peer": operation.peer}
    # Operations of a stream whose process group nobody names have a number that no other rank has.
    stream = hashlib.sha256(f"kineto rank {info.rank} stream {kernel.tid}".encode()).digest()
    row |= {"comm": group.comm if group else int.from_bytes(stream[:8], "big")}
    row |= {"rank": group.ranks.index(info.rank) if group else info.rank, "dtype": operation.dtype}
    row |= {"replay": 0, "epoch": 0, "captured": captured, "bytes": operation.size, "clock": "gpu"}
    row |= {"seq_valid": operation.seq is not None and operation.peer < 0 and not captured and group is not None}
    return row | {"enqueue_ns": enqueue_ns, "start_ns": start_ns, "end_ns": trace.unix_ns(kernel.ts + kernel.dur)}


def _note_comm(comms: dict[int, Row], row: Row, operation: Operation, info: ProcessInfo) -> None:
    """Note a communicator when it is first heard of, which is when it was made as far as the trace knows."""
    group = operation.group
    if group is None or group.comm in comms:
        return
    about = {name: row[name] for name in ("host", "job", "attempt", "comm", "rank")}
    about |= {"name": group.desc or group.name, "nranks": len(group.ranks), "world_rank": info.rank}
    about |= {"nccl_version": info.nccl_version, "plugin_version": "kineto", "detail": "ops"}
    comms[group.comm] = about | {"init_ns": row["enqueue_ns"]}
