"""Turns callbacks that the plugin recorded at detail `trace` into lines of JSON that other machines can replay.

One line about the run, one header per rank, then one line per callback in order of time. Needs only the standard
library, and nothing else of this package: the GPU kit imports it where only Python is installed. The layout of a
record is `struct wire_callback` of nccl_plugin/wire.h.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

TYPES = (
    "Group", "Coll", "P2p", "ProxyOp", "ProxyStep", "ProxyCtrl", "KernelCh", "NetPlugin",
    "GroupApi", "CollApi", "P2pApi", "KernelLaunch", "CeColl", "CeSync", "CeBatch", "KernelPhase",
)  # fmt: skip
PHASES = ("start", "stop", "state")
STATES = (
    "OpSendPosted", "OpSendRemFifoWait", "OpSendTransmitted", "OpSendDone",
    "OpRecvPosted", "OpRecvReceived", "OpRecvTransmitted", "OpRecvDone",
    "SendGPUWait", "SendWait", "RecvWait", "RecvFlushWait", "RecvGPUWait",
    "CtrlIdle", "CtrlActive", "CtrlSleep", "CtrlWakeup", "CtrlAppend", "CtrlAppendEnd",
    "OpInProgress", "SendPeerWait", "NetUpdate", "KernelChStop", "GroupStartApiStop", "GroupEndApiStart",
    "CeCollStart", "CeCollComplete", "CeSyncStart", "CeSyncComplete", "CeBatchStart", "CeBatchComplete",
    "KernelPhaseStop",
)  # fmt: skip
# NCCL's own words, in the order of the enums of wire.h; what the plugin did not know has number 0.
FUNCS = (
    None, "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
    "Send", "Recv", "AlltoAll", "Gather", "Scatter",
)  # fmt: skip
DTYPES = (
    None, "ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64", "ncclFloat16", "ncclFloat32",
    "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2",
)  # fmt: skip
ALGOS = (None, "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOS = (None, "LL", "LL128", "SIMPLE")

RECORD = struct.Struct("<IBBHQQQIBBBB24s")  # stamp, kind, flags, comm, then struct wire_callback; its union last
COLL = struct.Struct("<QQ8B")
P2P = struct.Struct("<Qi4BQ")
TRANSFER = struct.Struct("<iiiiII")
ONE = struct.Struct("<QQQ")
CAPTURED_SHIFT = 43  # WIRE_CAPTURED_SHIFT: the handle of a call tells whether a CUDA graph captured it
FOLLOWERS = ("ProxyOp", "ProxyStep", "KernelCh", "KernelPhase", "NetPlugin")  # run on after the call that caused them

Event = dict[str, object]


@dataclass(frozen=True)
class RecordedComm:
    """A communicator as the ring file knew it; `index` is that of its slot in the table there."""

    index: int
    id: int
    rank: int
    nranks: int
    nnodes: int
    init_ns: int
    destroy_ns: int  # 0 while it lives
    name: str


@dataclass(frozen=True)
class RankRecording:
    """What one process recorded: callbacks as 64-byte records in any order, and how its ticks become UNIX time."""

    rank: int
    pid: int
    host: str
    api: int
    comms: Sequence[RecordedComm]
    records: bytes
    unix_ns: Callable[[int], int]


def trace_lines(
    about: Mapping[str, object], recordings: Sequence[RankRecording], events: Iterable[Event], epoch_ns: int
) -> Iterator[str]:
    """The lines of a trace, without line ends. Times count from `epoch_ns`, a UNIX time common to all ranks.

    `events` are those of all ranks, whole (`events_of`) or cut (`cut_events`); those of one moment keep their order.
    """
    yield json.dumps(about)
    for recording in recordings:
        yield json.dumps({"rank": recording.rank, "header": _header(recording, epoch_ns)})
    for event in sorted(events, key=_when):
        yield json.dumps(event, separators=(",", ":"))


def events_of(recording: RankRecording, epoch_ns: int) -> Iterator[Event]:
    """The callbacks of one rank in order of time, without those whose start or parent's start was overwritten."""
    numbers = {comm.index: number for number, comm in enumerate(recording.comms)}
    known: dict[int, tuple[int, str]] = {}  # handle: number and type of the event that had it last; 0 is no handle
    begun = 0
    for fields in sorted(RECORD.iter_unpack(recording.records), key=lambda record: record[4]):
        _, _, _, comm, ticks, handle, parent, thread, phase, kind, state, channel, detail = fields
        is_start = phase == PHASES.index("start")
        if (is_start and parent and parent not in known) or not (is_start or handle in known):
            known.pop(handle, None)
            continue
        if is_start:
            begun += 1
        number, type_name = (begun, TYPES[kind]) if is_start else known[handle]
        event: Event = {"r": recording.rank, "ts": recording.unix_ns(ticks) - epoch_ns, "ev": PHASES[phase]}
        event |= {"type": type_name, "h": number, "tid": thread}
        if is_start:
            event["comm"] = numbers.get(comm, -1)
            if parent in known:
                event["parent"], event["ptype"] = known[parent]
            event |= _details(type_name, channel, detail, handle)
            known[handle] = (number, type_name)
        elif phase == PHASES.index("state"):
            value = ONE.unpack(detail)[0]
            event |= {"state": STATES[state] if state < len(STATES) else state} | ({"arg": value} if value else {})
        yield event


def cut_events(events: Sequence[Event], begin_ns: int, end_ns: int) -> Iterator[Event]:
    """The calls of one rank from `begin_ns` to before `end_ns`, whole: what they caused follows them over the end.

    The call that captured a CUDA graph stays with the graph's replays, however long ago it was.
    """
    starts = {event["h"]: event for event in events if event["ev"] == "start"}
    kept: set[object] = set()
    for number, start in starts.items():
        if start["type"] in FOLLOWERS:
            if start.get("parent") in kept:
                kept.add(number)
        elif begin_ns <= _when(start) < end_ns:
            kept.add(number)
            while "parent" in start and start["parent"] in starts:
                kept.add(start["parent"])
                start = starts[start["parent"]]
    for event in events:
        if event["h"] in kept and (_when(event) < end_ns or event["type"] in FOLLOWERS):
            yield event


def _when(event: Event) -> int:
    timestamp = event["ts"]
    assert isinstance(timestamp, int)
    return timestamp


def _header(recording: RankRecording, epoch_ns: int) -> Event:
    first_ns = min((comm.init_ns for comm in recording.comms), default=epoch_ns)
    return {
        "pid": recording.pid,
        "host": recording.host,
        "api": recording.api,
        "mono0": first_ns - epoch_ns,
        "real0": first_ns,
        "comms": [_comm(comm, recording.api, epoch_ns) for comm in recording.comms],
    }


def _comm(comm: RecordedComm, api: int, epoch_ns: int) -> Event:
    return {
        "id": f"{comm.id:016x}",
        "nNodes": comm.nnodes,
        "nRanks": comm.nranks,
        "rank": comm.rank,
        "api": api,
        "ts_init": comm.init_ns - epoch_ns,
        "ts_fini": comm.destroy_ns and comm.destroy_ns - epoch_ns,
        "name": comm.name,
    }


def _details(type_name: str, channel: int, detail: bytes, handle: int) -> Event:
    """What a start says beyond its parent, by type; types that say nothing more give nothing."""
    if type_name in ("Coll", "CollApi", "CeColl"):
        return _collective(type_name, detail)
    if type_name in ("P2p", "P2pApi"):
        return _send_or_receive(type_name, detail)
    value = ONE.unpack(detail)[0]
    if type_name == "ProxyOp":
        peer, steps, chunk, pid, send, _ = TRANSFER.unpack(detail)
        return {"peer": peer, "ch": channel, "send": send, "nSteps": steps, "chunk": chunk, "pid": pid}
    if type_name == "GroupApi":
        return {"captured": handle >> CAPTURED_SHIFT & 1, "depth": value}
    if type_name == "ProxyStep":
        return {"step": value}
    if type_name in ("KernelCh", "KernelPhase"):
        return {"ch": channel, "ptimer": value}
    return {"stream": hex(value)} if type_name == "KernelLaunch" else {}


def _collective(type_name: str, detail: bytes) -> Event:
    seq, count, func, dtype, algo, proto, channels, warps, captured, _ = COLL.unpack(detail)
    named: Event = {"func": FUNCS[func], "dtype": DTYPES[dtype]}
    if type_name == "CollApi":
        return {"count": count, "captured": captured} | named
    return {
        "seq": seq,
        "count": count,
        **named,
        "algo": ALGOS[algo],
        "proto": PROTOS[proto],
        "nCh": channels,
        "nWarps": warps,
    }


def _send_or_receive(type_name: str, detail: bytes) -> Event:
    count, peer, func, dtype, channels, captured, _ = P2P.unpack(detail)
    named: Event = {"func": FUNCS[func], "dtype": DTYPES[dtype]}
    if type_name == "P2pApi":
        return {"count": count, "captured": captured} | named
    return {"peer": peer, "count": count, "nCh": channels} | named
