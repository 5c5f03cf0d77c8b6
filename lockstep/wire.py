"""The layout of a ring file, as nccl_plugin/wire.h gives it: where each number stands, and what its codes mean.

Constants have their C names without `WIRE_`. Where that is already the name of a struct, the kind of constant goes
before (`KIND_ENQUEUED`, `ALGO_RING`), and the end of an enumeration is the length of its table of names. A probe that
is compiled from wire.h compares every offset and every value with this file.
"""

import numpy as np
from numpy.typing import DTypeLike, NDArray

Table = NDArray[np.void]  # elements of one of the structs below
Numbers = NDArray[np.uint64]

MAGIC = b"LOCKSTEP"
BUSY = 0xFFFFFFFF  # the stamp of a record that is being written; also "no row"
NO_COMM = 0xFFFF

VERSION = 1
PAGE = 4096
CLOCK_PAIRS = 64
COMMS = 4096
ROWS = 8192
RING_RECORDS = 8192
RING_OPERATIONS = 1024
RING_TRANSFERS = 512
STEPS_AHEAD = 8
MARKS = 4

OFF, OPERATIONS, TRANSFERS, STEPS, TRACE = range(5)
CLOCK_TSC, CLOCK_CNTVCT, CLOCK_MONOTONIC, CLOCK_REPLAY = range(1, 5)
NOT_LOWERED, LOWERED_BY_CALLBACKS, LOWERED_BY_JOB = range(3)

FUNC_UNKNOWN, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE = range(6)
SEND, RECV, ALL_TO_ALL, GATHER, SCATTER = range(6, 11)
FUNCS = (
    *("", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"),
    *("Send", "Recv", "AlltoAll", "Gather", "Scatter"),
)

DTYPE_UNKNOWN, INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = range(11)
FLOAT8E4M3, FLOAT8E5M2 = 11, 12
DTYPES = (
    *("", "ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64"),
    *("ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"),
)

ALGO_UNKNOWN, TREE, ALGO_RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT = range(8)
ALGOS = ("", "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTO_UNKNOWN, LL, LL128, SIMPLE = range(4)
PROTOS = ("", "LL", "LL128", "SIMPLE")

WAIT_UNKNOWN, WAIT_GPU, WAIT_PEER, WAIT_WIRE, WAIT_RECV, WAIT_FLUSH, WAIT_RECV_GPU = range(7)
WAITS = ("unknown", "gpu_wait", "peer_wait", "wire", "recv_wait", "flush", "recv_gpu_wait")  # as in `progress`

HANDLE_API, HANDLE_OPERATION, HANDLE_TRANSFER, HANDLE_STEP, HANDLE_KERNEL = range(1, 6)
TAG_SHIFT, KIND_SHIFT, SAMPLED_SHIFT, CAPTURED_SHIFT, STEP_SHIFT = 48, 45, 44, 43, 40
GENERATION_SHIFT, GENERATION_BITS = 16, 24

KIND_ENQUEUED, KIND_TRANSFER_CLOSED, KIND_KERNEL_CLOSED, KIND_STEP_CLOSED, KIND_CALLBACK = range(1, 6)
FLAG_SAMPLED, FLAG_CAPTURED, FLAG_SEQ_VALID, FLAG_SEND, FLAG_STEPS, FLAG_KERNEL = 1, 2, 4, 8, 16, 32
FLAG_UNTIMED, FLAG_AWAITS_KERNEL = 64, 128

Field = tuple[str, DTypeLike, int]  # name, type, offset


def _struct(size: int, *fields: Field) -> np.dtype[np.void]:
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


SECTION = _struct(16, ("offset", "<u8", 0), ("count", "<u4", 8), ("stride", "<u4", 12))

HEADER = _struct(
    520,
    *(("magic", "S8", 0), ("version", "<u4", 8), ("ready", "<u4", 12)),
    *(("file_bytes", "<u8", 16), ("created_ns", "<u8", 24), ("pid", "<u4", 32), ("tag", "<u4", 36)),
    *(("clock_kind", "<u4", 40), ("nccl_version", "<u4", 44), ("api_version", "<u4", 48)),
    *(("kernel_channels", "<u4", 52), ("requests", SECTION, 56), ("status", SECTION, 72), ("clocks", SECTION, 88)),
    *(("comms", SECTION, 104), ("rows", SECTION, 120), ("rings", SECTION, 136), ("records", SECTION, 152)),
    *(("operations", SECTION, 168), ("transfers", SECTION, 184), ("world_rank", "<i4", 200)),
    *(("world_size", "<i4", 204), ("local_rank", "<i4", 208), ("attempt", "<u4", 212)),
    *(("plugin_version", "S16", 216), ("host", "S80", 232), ("job", "S80", 312), ("visible_gpus", "S128", 392)),
)

REQUEST = _struct(16, ("stamp", "<u4", 0), ("level", "<u4", 4), ("share", "<u4", 8), ("budget_ppm", "<u4", 12))

STATUS = _struct(
    96,
    *(("stamp", "<u4", 0), ("level", "<u4", 4), ("share", "<u4", 8), ("budget_ppm", "<u4", 12)),
    *(("mask", "<u4", 16), ("epoch", "<u4", 20), ("lowered", "<u4", 24), ("callback_ppm", "<u4", 28)),
    *(("paid_ppm", "<i4", 32), ("paid_error_ppm", "<u4", 36), ("paid_pairs", "<u4", 40), ("dear", "<u4", 44)),
    *(("refused_comms", "<u8", 48), ("refused_rows", "<u8", 56), ("overwritten", "<u8", 64)),
    *(("stale", "<u8", 72), ("foreign", "<u8", 80), ("shared_threads", "<u8", 88)),
)

CLOCK_PAIR = _struct(32, ("ticks", "<u8", 0), ("unix_ns", "<u8", 8), ("error_ticks", "<u8", 16), ("stamp", "<u8", 24))

COMM = _struct(
    128,
    *(("incarnation", "<u8", 0), ("id", "<u8", 8), ("init_ticks", "<u8", 16), ("destroy_ticks", "<u8", 24)),
    *(("rank", "<u4", 32), ("nranks", "<u4", 36), ("nnodes", "<u4", 40), ("kernel_untrusted", "<u4", 44)),
    ("name", "S80", 48),
)

ROW = _struct(
    64,
    *(("key", "<u8", 0), ("enqueued", "<u8", 8), ("started", "<u8", 16), ("done", "<u8", 24)),
    *(("enqueued_ticks", "<u8", 32), ("started_ticks", "<u8", 40), ("done_ticks", "<u8", 48)),
    *(("epoch", "<u4", 56), ("replay", "<u4", 60)),
)

RING = _struct(
    128,
    *(("head", "<u8", 0), ("lost", "<u8", 8), ("callbacks", "<u8", 16), ("sampled_callbacks", "<u8", 24)),
    *(("sampled_ticks", "<u8", 32), ("taken_ticks", "<u8", 40), ("thread", "<u4", 48), ("unused", ("<u4", 19), 52)),
)

OPERATION = _struct(
    64,
    *(("handle", "<u8", 0), ("seq", "<u8", 8), ("bytes", "<u8", 16), ("enqueue_ticks", "<u8", 24)),
    *(("comm", "<u2", 32), ("func", "u1", 34), ("dtype", "u1", 35), ("algo", "u1", 36), ("proto", "u1", 37)),
    *(("channels", "u1", 38), ("flags", "u1", 39), ("peer", "<i4", 40), ("replay", "<u4", 44), ("row", "<u4", 48)),
    *(("open", "<u4", 52), ("epoch", "<u4", 56), ("began", "<u4", 60)),
)

OPEN_STEP = _struct(
    48,
    *(("marks", ("<u8", MARKS), 0), ("bytes", "<u8", 32), ("step", "<u4", 40)),
    *(("wait", "u1", 44), ("state", "u1", 45), ("unused", "<u2", 46)),
)

TRANSFER = _struct(
    512,
    *(("handle", "<u8", 0), ("operation", "<u8", 8), ("wait", "<u8", 16), ("bytes", "<u8", 24)),
    *(("first_ticks", "<u8", 32), ("last_ticks", "<u8", 40), ("pid", "<u4", 48), ("peer", "<i4", 52)),
    *(("comm", "<u2", 56), ("channel", "u1", 58), ("flags", "u1", 59), ("steps", "<u4", 60)),
    *(("done_steps", "<u4", 64), ("head_step", "<u4", 68), ("wait_ticks", ("<u8", 4), 72)),
    *(("charged_ticks", "<u8", 104), ("unused", ("<u8", 2), 112), ("ahead", (OPEN_STEP, STEPS_AHEAD), 128)),
)


def _record(*fields: Field) -> np.dtype[np.void]:
    return _struct(64, ("stamp", "<u4", 0), ("kind", "u1", 4), ("flags", "u1", 5), ("comm", "<u2", 6), *fields)


RECORD = _record()  # of any kind

ENQUEUED = _record(
    *(("operation", "<u8", 8), ("seq", "<u8", 16), ("bytes", "<u8", 24), ("ticks", "<u8", 32)),
    *(("peer", "<i4", 40), ("replay", "<u4", 44), ("func", "u1", 48), ("dtype", "u1", 49), ("algo", "u1", 50)),
    *(("proto", "u1", 51), ("channels", "u1", 52), ("unused", "u1", 53), ("epoch", "<u2", 54)),
    *(("root", "<i4", 56), ("padding", "<u4", 60)),
)

TRANSFER_CLOSED = _record(
    *(("operation", "<u8", 8), ("first_ticks", "<u8", 16), ("bytes", "<u8", 24), ("peer", "<i4", 32)),
    *(("pid", "<u4", 36), ("duration", "<u4", 40), ("channel_steps", "<u4", 44), ("waits", ("<u4", 4), 48)),
)

KERNEL_CLOSED = _record(
    *(("operation", "<u8", 8), ("gpu_start_ns", "<u8", 16), ("gpu_stop_ns", "<u8", 24)),
    *(("start_ticks", "<u8", 32), ("stop_ticks", "<u8", 40), ("channel", "<u4", 48), ("unused", ("<u4", 3), 52)),
)

STEP_CLOSED = _record(
    *(("operation", "<u8", 8), ("posted_ticks", "<u8", 16), ("bytes", "<u8", 24), ("marks", ("<u4", 3), 32)),
    *(("padding", "<u4", 44), ("step", "<u4", 48), ("peer", "<i4", 52)),
    *(("channel", "<u4", 56), ("unused", "<u4", 60)),
)

CALLBACK_COLL = _struct(
    24,
    *(("seq", "<u8", 0), ("count", "<u8", 8), ("func", "u1", 16), ("dtype", "u1", 17), ("algo", "u1", 18)),
    *(("proto", "u1", 19), ("channels", "u1", 20), ("warps", "u1", 21), ("captured", "u1", 22), ("unused", "u1", 23)),
)
CALLBACK_P2P = _struct(
    24,
    *(("count", "<u8", 0), ("peer", "<i4", 8), ("func", "u1", 12), ("dtype", "u1", 13), ("channels", "u1", 14)),
    *(("captured", "u1", 15), ("unused", "<u8", 16)),
)
CALLBACK_TRANSFER = _struct(
    24,
    *(("peer", "<i4", 0), ("steps", "<i4", 4), ("chunk", "<i4", 8), ("pid", "<i4", 12)),
    *(("send", "<u4", 16), ("unused", "<u4", 20)),
)
CALLBACK_ONE = _struct(24, ("value", "<u8", 0), ("unused", ("<u8", 2), 8))

CALLBACK = _record(
    *(("ticks", "<u8", 8), ("handle", "<u8", 16), ("parent", "<u8", 24), ("thread", "<u4", 32)),
    *(("phase", "u1", 36), ("type", "u1", 37), ("state", "u1", 38), ("channel", "u1", 39)),
    *(("coll", CALLBACK_COLL, 40), ("p2p", CALLBACK_P2P, 40), ("transfer", CALLBACK_TRANSFER, 40)),
    ("one", CALLBACK_ONE, 40),  # one place, four readings
)


def unpack_duration(packed: NDArray[np.uint32]) -> Numbers:
    """Return ticks: mantissa in bits 26 to 0, shifted left by bits 31 to 27; all ones means that nobody saw it.

    >>> unpack_duration(np.array([5, 1 << 27 | 3], np.uint32)).tolist()
    [5, 6]
    """
    wide = np.asarray(packed).astype(np.uint64)
    return (wide & np.uint64(0x7FFFFFF)) << (wide >> np.uint64(27))


def tag_of(handle: Numbers | int) -> Numbers:
    """Return the tag of the process that made a handle; another one than the header's is another process's."""
    return np.right_shift(handle, np.uint64(TAG_SHIFT))


def split_key(key: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return communicator, function and peer (0xFFFFFFFF: none) of rows that are in use."""
    comm = np.right_shift(key, np.uint64(40)) - np.uint64(1)
    func = np.bitwise_and(np.right_shift(key, np.uint64(32)), np.uint64(0xFF))
    return comm, func, np.bitwise_and(key, np.uint64(0xFFFFFFFF))


def text_of(raw: bytes) -> str:
    """Return a text of the file up to its 0, without anything that could move a cursor or break a line.

    >>> text_of(b"node\\x1b[2J-7\\xff\\0rest")
    'node[2J-7\ufffd'
    """
    return "".join(letter for letter in raw.split(b"\0", 1)[0].decode(errors="replace") if letter.isprintable())
