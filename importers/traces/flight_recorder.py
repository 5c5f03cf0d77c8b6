"""PyTorch Flight Recorder dumps, one file per rank, pickled or as JSON: what each rank enqueued and finished.

What the dumps leave open, and what is done about it:

- Neither rank nor host is in a dump. The rank is the number at the end of the file's name, which is how PyTorch names
  them; every rank stands as a host of its own, `rank-9`.
- When a dump was made is not in it either: `progress` is told at the newest moment that any of the dumps knows, and
  communicators are known from the oldest.
- Starts and ends are the moments at which a watchdog noticed them, up to a second late: start and end stay unknown.
- Operations are counted per process group, whatever the function: that number is `seq`, and progress has no `func`.
  Sends and receives have a count of their own, on each rank those that it took part in. Two ranks that only send to
  each other count alike; in larger groups, and beside collectives, these counts cannot be compared and are left out.

Operations that have not ended are not in `collectives`; `progress` tells of the oldest one of each group.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WrapValidator
from pydantic_core import from_json

from importers.traces.readings import Loose, Reading, Row, Text, parse_json, refuse_twice, validated
from lockstep.errors import BadInput
from lockstep.hostile_files import load_plain_all

FUNCS = {
    "all_reduce": "AllReduce",
    "all_reduce_barrier": "AllReduce",
    "allreduce_coalesced": "AllReduce",
    "all_gather": "AllGather",
    "_all_gather_base": "AllGather",
    "all_gather_into_tensor_coalesced": "AllGather",
    "ALLGATHER_coalesced": "AllGather",
    "all_gather_single": "AllGather",
    "all_gather_v": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "_reduce_scatter_base": "ReduceScatter",
    "reduce_scatter_tensor_coalesced": "ReduceScatter",
    "REDUCE_SCATTER_coalesced": "ReduceScatter",
    "reduce_scatter_single": "ReduceScatter",
    "reduce_scatter_v": "ReduceScatter",
    "broadcast": "Broadcast",
    "_broadcast_oop": "Broadcast",
    "reduce": "Reduce",
    "_reduce_oop": "Reduce",
    "all_to_all": "AlltoAll",
    "all_to_all_single": "AlltoAll",
    "all_to_all_v_single": "AlltoAll",
    "gather": "Gather",
    "scatter": "Scatter",
    "send": "Send",
    "recv": "Recv",
}

# PyTorch's name: NCCL's name and the bytes of one value.
DTYPES = {
    "Byte": ("ncclUint8", 1),
    "Bool": ("ncclUint8", 1),
    "Char": ("ncclInt8", 1),
    "Int": ("ncclInt32", 4),
    "Long": ("ncclInt64", 8),
    "Half": ("ncclFloat16", 2),
    "BFloat16": ("ncclBfloat16", 2),
    "Float": ("ncclFloat32", 4),
    "Double": ("ncclFloat64", 8),
    "Float8_e4m3fn": ("ncclFloat8e4m3", 1),
    "Float8_e5m2": ("ncclFloat8e5m2", 1),
}


def nccl_dtype(dtypes: Sequence[str]) -> str | None:
    """Return NCCL's name of the data type of all these tensors, or None where they differ or it has none."""
    names = {DTYPES[dtype][0] if dtype in DTYPES else None for dtype in dtypes}
    return names.pop() if len(names) == 1 else None


def size_of(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int | None:
    """Return the bytes of tensors of these shapes, or None where shapes or data types do not tell."""
    kinds = list(dtypes) * len(shapes) if len(dtypes) == 1 else list(dtypes)
    if not shapes or len(kinds) != len(shapes) or any(kind not in DTYPES for kind in kinds):
        return None
    if any(length < 0 for shape in shapes for length in shape):
        return None
    size = sum(prod(shape) * DTYPES[kind][1] for shape, kind in zip(shapes, kinds, strict=True))
    return size if size < 1 << 64 else None


_U64 = Field(ge=0, lt=1 << 64)
_TIMESTAMP = Field(ge=0, lt=1 << 63)
_COUNT = Field(ge=-1, lt=1 << 63)  # -1: none, or nobody looked


# Pickled dumps write ranks as text.
_Listed = BeforeValidator(lambda ranks: from_json(ranks) if isinstance(ranks, str) else ranks)


class ProcessGroup(Loose):
    """A process group and the world ranks in it, in the order of their ranks inside."""

    name: Text
    desc: Text = ""
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...], _Listed]

    @cached_property
    def comm(self) -> int:
        """A number that all ranks find alike: dumps do not tell NCCL's own."""
        given = f"{self.name} {self.ranks}".encode()
        return int.from_bytes(hashlib.sha256(given).digest()[:8], "big")

    @cached_property
    def index_of(self) -> dict[int, int]:
        """The rank inside of each world rank; of one that is named twice, the first."""
        return {rank: index for index, rank in reversed([*enumerate(self.ranks)])}


_Known = dict[tuple[str, ...], ProcessGroup]  # by the words that told it


def _share(given: object, validate: Callable[[object], ProcessGroup], info: ValidationInfo) -> ProcessGroup:
    """Return the group that an earlier dump told in the same words: each of a thousand ranks tells all thousand."""
    known: _Known = {} if info.context is None else info.context
    words = [given.get("name"), given.get("desc", ""), given.get("ranks")] if isinstance(given, dict) else [None]
    texts = tuple(word for word in words if isinstance(word, str))
    if len(texts) < len(words):
        return validate(given)
    if texts not in known:
        known[texts] = validate(given)
    return known[texts]


class GroupStatus(Loose):
    """The numbers of the last operations of a process group."""

    last_enqueued_collective: int = _COUNT
    last_started_collective: int = _COUNT
    last_completed_collective: int = _COUNT


class Entry(Loose):
    """An operation as the recorder knew it."""

    pg_id: int = _U64
    process_group: tuple[Text, Text]
    collective_seq_id: int = _U64
    p2p_seq_id: int = _U64
    is_p2p: bool
    profiling_name: Text
    time_created_ns: int = _TIMESTAMP
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...] = ()
    state: Literal["scheduled", "started", "completed"]

    @property
    def seq(self) -> int:
        return self.p2p_seq_id if self.is_p2p else self.collective_seq_id

    @property
    def func(self) -> str:
        return _func_and_peer(self.profiling_name)[0]

    @property
    def peer(self) -> int:
        """The rank on the other side inside the group, or -1."""
        return _func_and_peer(self.profiling_name)[1]

    @property
    def buffer(self) -> tuple[int | None, str | None]:
        """Bytes and data type, as NCCL counts: one rank's part of AllGather and ReduceScatter, else the whole."""
        given = [(self.input_sizes, self.input_dtypes), (self.output_sizes, self.output_dtypes)]
        shapes, dtypes = given[self.func in ("ReduceScatter", "Recv")]
        return size_of(shapes, dtypes), nccl_dtype(dtypes)


@lru_cache(1024)  # a job has dozens, and one for each peer of sends and receives
def _func_and_peer(profiling_name: str) -> tuple[str, int]:
    """Return what is called, and the other side of a send or receive, which PyTorch writes `0->1` or `0<-1`."""
    word = profiling_name.rpartition(":")[2].partition(" ")[0]
    sides = re.search(r" \d+(?:->|<-)(\d{1,9})$", profiling_name)
    return FUNCS.get(word, word), int(sides[1]) if sides else -1


class Dump(Loose):
    """One rank's dump."""

    version: Text = Field(pattern=r"^2\.")  # as far as we know, versions 2.x only add
    nccl_version: Text | None = None
    pg_config: dict[Text, Annotated[ProcessGroup, WrapValidator(_share)]]
    pg_status: dict[str, GroupStatus] = Field({})
    entries: tuple[Entry, ...] = ()  # as JSON it is left out where nothing was recorded


@dataclass(frozen=True)
class RankDump:
    """A dump and the rank that its file's name tells."""

    file: str
    rank: int
    dump: Dump

    @cached_property
    def groups(self) -> dict[str, ProcessGroup]:
        """The process groups that the rank belongs to, by name."""
        return {name: group for name, group in self.dump.pg_config.items() if self.rank in group.index_of}

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """What the rank enqueued, by the name of the process group."""
        entries: dict[str, list[Entry]] = {}
        for entry in self.dump.entries:
            entries.setdefault(entry.process_group[0], []).append(entry)
        return entries

    def row(self, job: str, group: ProcessGroup) -> Row:
        """Return what all rows of this rank in a group begin with."""
        row: Row = {"host": f"rank-{self.rank}", "job": job, "attempt": 0}
        return row | {"comm": group.comm, "rank": group.index_of[self.rank]}


def parse_flight_recorder(files: Mapping[str, bytes], job: str) -> Reading:
    """Return communicators, finished operations and progress of the ranks whose dumps these files are."""
    known: _Known = {}
    ranks = {name: _find_rank(name) for name in files}
    is_json = {name: data.lstrip()[:1] == b"{" for name, data in files.items()}
    held = load_plain_all({name: data for name, data in files.items() if not is_json[name]})
    held |= {name: parse_json(name, data) for name, data in files.items() if is_json[name]}
    dumps = [_parse(name, rank, held[name], known) for name, rank in ranks.items()]
    refuse_twice((dump.rank, dump.file) for dump in dumps)
    timestamps = [entry.time_created_ns for dump in dumps for entry in dump.dump.entries]
    if not timestamps:
        raise BadInput(f"{', '.join(files)}: no dump has an entry, so that nothing tells when this was")
    reading, uncounted = Reading(), _find_uncounted(dumps)
    oldest_ns, newest_ns = min(timestamps), max(timestamps)
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        _add_comms(reading, dump, job, oldest_ns)
        _add_collectives(reading, dump, job)
        _add_progress(reading, dump, job, newest_ns, uncounted)
    return reading


def _find_rank(name: str) -> int:
    number = re.search(r"(\d{1,9})(?:\.[A-Za-z]+)?$", name)
    if not number:
        raise BadInput(f"{name}: the name does not end in the number of a rank, as in nccl_trace_rank_3")
    return int(number[1])


def _parse(name: str, rank: int, held: object, known: _Known) -> RankDump:
    dump = RankDump(name, rank, validated(Dump, held, name, context=known))
    if not dump.groups:
        raise BadInput(f"{name}: pg_config: no process group has rank {dump.rank}, which the file's name tells")
    for index, group in enumerate(entry.process_group[0] for entry in dump.dump.entries):
        if group not in dump.groups:
            raise BadInput(f"{name}: entries.{index}: rank {dump.rank} is not in process group {group!r}")
    return dump


def _add_comms(reading: Reading, dump: RankDump, job: str, init_ns: int) -> None:
    for group in dump.groups.values():
        row = dump.row(job, group) | {"name": group.desc or group.name, "nranks": len(group.ranks)}
        row |= {"world_rank": dump.rank, "nccl_version": dump.dump.nccl_version, "init_ns": init_ns}
        row |= {"plugin_version": f"flight-recorder {dump.dump.version}", "detail": "ops"}
        reading.add("comms", row)


def _add_collectives(reading: Reading, dump: RankDump, job: str) -> None:
    seen: set[tuple[object, ...]] = set()
    for entry in dump.dump.entries:
        name = entry.process_group[0]
        key = (name, entry.func, entry.seq, entry.peer)  # operations that were coalesced share a number
        if entry.state != "completed":
            reading.unread["operations had not ended; progress tells of the oldest of each process group"] += 1
        elif (buffer := entry.buffer)[0] is None:
            reading.unread["operations were left out, because nobody can say how much they moved"] += 1
        elif key in seen:
            reading.unread["operations were left out, because others of the same group have their number"] += 1
        else:
            row = dump.row(job, dump.dump.pg_config[name]) | {"bytes": buffer[0], "dtype": buffer[1]}
            row |= {"func": entry.func, "peer": entry.peer, "seq": entry.seq, "seq_valid": not entry.is_p2p}
            # The recorder does not write down what runs out of a CUDA graph.
            row |= {"replay": 0, "captured": False, "epoch": 0, "enqueue_ns": entry.time_created_ns, "clock": "none"}
            reading.add("collectives", row)
        seen.add(key)


def _find_uncounted(dumps: Iterable[RankDump]) -> set[str]:
    """Return the names of the process groups whose counts mean something else on every rank."""
    kinds: dict[str, set[bool]] = {}
    sizes: dict[str, int] = {}
    for dump in dumps:
        sizes |= {name: len(group.ranks) for name, group in dump.groups.items()}
        for entry in dump.dump.entries:
            kinds.setdefault(entry.process_group[0], set()).add(entry.is_p2p)
    return {name for name, kind in kinds.items() if True in kind and (len(kind) > 1 or sizes[name] > 2)}


def _add_progress(reading: Reading, dump: RankDump, job: str, ts_ns: int, uncounted: set[str]) -> None:
    groups, names = dump.groups, _names_of_statuses(dump)
    for number, status in dump.dump.pg_status.items():
        name = names.get(number)
        if name not in groups:
            reading.unread["counts were left out, because nothing tells which process group they are of"] += 1
            continue
        if name in uncounted:
            reading.unread["counts were left out, because each rank counts other sends and receives"] += 1
            continue
        entries = dump.entries.get(name, [])
        row = dump.row(job, groups[name]) | {"ts_ns": ts_ns, "func": "", "peer": -1}
        reading.add("progress", row | _counts(status, entries) | _oldest_open(entries))


def _counts(status: GroupStatus, entries: Iterable[Entry]) -> Row:
    """Return how far a group has come. Starts are noticed only where timing is on: at least what ended began."""
    done = max(status.last_completed_collective, 0)
    begun = [entry.seq for entry in entries if entry.state == "started"]
    started = max(status.last_started_collective, done, *begun)
    return {"enqueued": max(status.last_enqueued_collective, started), "started": started, "done": done}


def _oldest_open(entries: Iterable[Entry]) -> Row:
    still_open = [entry for entry in entries if entry.state != "completed"]
    if not still_open:
        return {"head_state": "idle"}
    oldest = min(still_open, key=lambda entry: entry.time_created_ns)
    size, dtype = oldest.buffer
    row: Row = {"oldest_open_ns": oldest.time_created_ns, "open_bytes": size, "open_dtype": dtype}
    return row | {"head_state": "unknown", "head_peer": oldest.peer if oldest.peer >= 0 else None}


def _names_of_statuses(dump: RankDump) -> dict[str, str]:
    """Return the names of the process groups whose counts stand under a number: entries tell both.

    Both numbers and names count up as groups are made. So where there are as many of one as of the other, the order
    tells the rest, unless an entry contradicts it.
    """
    given = {str(entry.pg_id): entry.process_group[0] for entry in dump.dump.entries}
    numbers, names = list(dump.dump.pg_status), list(dump.dump.pg_config)
    if len(numbers) != len(names) or not all(word.isdecimal() and len(word) < 20 for word in (*numbers, *names)):
        return given
    in_order = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
    return in_order if in_order | given == in_order else given
