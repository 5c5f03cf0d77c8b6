"""Traces of PyTorch's profiler become operations as the GPU ran them, or one sentence with file and place."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.traces.flight_recorder import ProcessGroup
from importers.traces.kineto import parse_kineto
from importers.traces.kineto_trace import read_trace
from importers.traces.readings import Reading
from lockstep.errors import BadInput
from tests.importers.traces.build import Told, refusal, sound

BASE_NS = 1_700_000_000_000_000_000
SAME_NUMBER = "operations were left out, because others of the same group have their number"
SIZELESS = "operations were left out, because nobody can say how much they moved"
NAMELESS = "kernels were left out, because nothing tells which operation they ran"
PEERLESS = "operations were left out, because nothing tells who was on the other side"


def kernel(correlation: int = 7, ts: float = 100.5, args: Told | None = None) -> Told:
    """An all-reduce of 1024 floats in a group of ranks 4 and 5, as PyTorch writes it now; `args` say what differs."""
    noted = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2}
    noted |= {"dtype": "Float", "In split size": "[]", "Process Group Name": "3", "Seq": 11}
    noted |= {"Process Group Description": "tp", "Process Group Ranks": "[4, 5]"}
    told = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic(ncclDevComm*)", "pid": 0, "tid": 20}
    told |= {"ts": ts, "dur": 20.25, "args": noted | {"stream": 20, "correlation": correlation} | (args or {})}
    return told


def bare(event: Told) -> Told:
    """The same kernel without what PyTorch notes beside it."""
    return event | {"args": {"stream": 20, "correlation": event["args"]["correlation"]}}


def launch(correlation: int = 7, ts: float = 90.0, tid: int = 1) -> Told:
    told = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": tid, "ts": ts, "dur": 5.0}
    return told | {"args": {"correlation": correlation, "cbid": 211}}


def call(name: str = "nccl:all_reduce", ts: float = 80.0, dur: float = 20.0, tid: int = 1, **args: object) -> Told:
    told = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur}
    return told | {"args": {"Input Dims": [[100, 2]], "Input type": ["c10::BFloat16"]} | args}


def trace(*events: Told, rank: int = 5, **more: object) -> Told:
    info = {"backend": "nccl", "rank": rank, "world_size": 8, "nccl_version": "2.27.5"}
    whole = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": list(events), "traceName": "t.json"}
    return whole | {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS} | more


def read(*traces: Told) -> Reading:
    files = ((f"{n}.json", [json.dumps(told).encode()]) for n, told in enumerate(traces))
    return sound(parse_kineto(files, "j"))


def operation(*events: Told, rank: int = 5, **more: object) -> Told:
    (row,) = read(trace(*events, rank=rank, **more)).tables()["collectives"].to_pylist()
    found: Told = row
    return found


def test_kernel_is_an_operation_timed_by_the_gpu_in_a_group_that_the_flight_recorder_finds_alike() -> None:
    reading = read(trace(kernel(), launch()))
    (row,) = reading.tables()["collectives"].to_pylist()
    assert (row["host"], row["job"], row["func"], row["peer"]) == ("rank-5", "j", "AllReduce", -1)
    assert (row["enqueue_ns"], row["start_ns"]) == (BASE_NS + 90_000, BASE_NS + 100_500)
    assert (row["end_ns"], row["clock"]) == (BASE_NS + 120_750, "gpu")
    assert (row["bytes"], row["dtype"], row["rank"]) == (4096, "ncclFloat32", 1)
    assert (row["seq"], row["seq_valid"], row["captured"], row["algo"]) == (11, True, False, "")
    (row,) = reading.tables()["comms"].to_pylist()
    assert row["comm"] == ProcessGroup(name="3", ranks=(4, 5)).comm == reading.rows["collectives"][0]["comm"]
    assert (row["name"], row["rank"], row["nranks"], row["world_rank"]) == ("tp", 1, 2, 5)
    assert (row["nccl_version"], row["init_ns"], row["gpu"]) == ("2.27.5", BASE_NS + 90_000, None)


def test_size_is_what_nccl_counts_a_peer_the_rank_inside_the_group_and_numbers_are_made_where_there_are_none() -> (
    None
):
    for word, func, size in (
        ("_allgather_base", "AllGather", 400),
        ("_reduce_scatter_base", "ReduceScatter", 800),
        ("all_to_allv", "AlltoAll", 400),
        ("broadcast", "Broadcast", 400),
        ("barrier", "AllReduce", 400),
        ("ballet", "ballet", 400),
    ):
        row = operation(kernel(args={"Collective name": word, "In msg nelems": 100, "Out msg nelems": 200}))
        assert (row["func"], row["bytes"]) == (func, size)
    for word, label, func in (("send", "Dst Rank", "Send"), ("recv", "Src Rank", "Recv")):
        row = operation(kernel(args={"Collective name": word, label: 4}))
        assert (row["func"], row["peer"], row["seq_valid"]) == (func, 0, False)
    kernels = [kernel(n, ts=1000.0 - n) for n in range(3)]
    for event in kernels:
        del event["args"]["Seq"]
    rows = read(trace(*kernels)).rows["collectives"]
    assert [(row["seq"], row["start_ns"]) for row in rows] == [(n, BASE_NS + 998_000 + 1000 * n) for n in range(3)]


def test_long_list_of_ranks_is_taken_from_the_configuration_or_is_everybody() -> None:
    shortened = {"Process Group Ranks": "[0, 1, ..., 7]", "Group size": 4}
    info = {"rank": 5, "world_size": 8, "pg_config": [{"pg_name": "3", "pg_desc": "dp", "ranks": [1, 3, 5, 7]}]}
    row = operation(kernel(args=shortened), distributedInfo=info)
    assert (row["rank"], row["comm"]) == (2, ProcessGroup(name="3", ranks=(1, 3, 5, 7)).comm)
    row = operation(kernel(args=shortened))
    assert (row["rank"], row["seq_valid"]) == (5, False), "nobody knows who else is in it"
    row = operation(kernel(args=shortened | {"Group size": 8}))
    assert (row["rank"], row["comm"]) == (5, ProcessGroup(name="3", ranks=tuple(range(8))).comm)


def test_operation_without_a_group_stands_for_its_stream_and_is_not_compared() -> None:
    groupless = kernel(args={"Process Group Name": ""})
    reading = read(trace(groupless), trace(groupless, rank=4))
    first, second = reading.rows["collectives"]
    assert (first["rank"], first["seq_valid"], "comms" in reading.rows) == (5, False, False)
    assert first["comm"] != second["comm"]


def test_old_trace_tells_the_operation_by_the_call_that_launched_the_kernel() -> None:
    inner = call("nccl:all_gather", ts=85.0, dur=10.0)
    row = operation(bare(kernel()), launch(), call(), inner, call("nccl:reduce", tid=2))
    assert (row["func"], row["bytes"], row["dtype"]) == ("AllGather", 400, "ncclBfloat16")
    assert (row["seq"], row["seq_valid"], row["enqueue_ns"]) == (0, False, BASE_NS + 90_000)
    noted = call("record_param_comms", ts=79.0, dur=30.0) | {"cat": "cpu_op", "args": kernel()["args"]}
    row = operation(bare(kernel()), launch(), call(), noted)
    assert (row["seq"], row["bytes"]) == (11, 4096), "what is noted beside the call holds before its name"


@pytest.mark.parametrize(
    ("events", "unread"),
    [
        ([bare(kernel(8)), bare(kernel(9)), launch(9), call(ts=1.0, dur=1.0)], {NAMELESS: 2}),  # nobody launched them
        ([kernel(ts=200, args={"Seq": 12, "dtype": "QInt8"})], {SIZELESS: 1}),
        ([kernel(ts=200, args={"Seq": 12, "In msg nelems": -1})], {SIZELESS: 1}),
        ([bare(kernel(8)), launch(8), call("nccl:reduce_scatter")], {SIZELESS: 1}),  # its input does not tell
        ([bare(kernel(8)), launch() | {"args": {"correlation": "8"}}, call()], {NAMELESS: 1}),
        ([kernel(8, ts=300)], {SAME_NUMBER: 1}),
        ([kernel(ts=200, args={"Collective name": "send", "Seq": 12})], {PEERLESS: 1}),
    ],
)
def test_what_tells_too_little_is_left_out_and_counted(events: list[Told], unread: dict[str, int]) -> None:
    reading = read(trace(kernel(), *events))
    assert (len(reading.rows["collectives"]), reading.unread) == (1, unread)


def test_kernel_out_of_a_graph_is_marked_and_an_old_trace_has_unix_time() -> None:
    row = operation(kernel(ts=1_682_725_898_094_364, args={"graph id": 3}), baseTimeNanoseconds=0)
    assert (row["captured"], row["seq_valid"]) == (True, False)
    assert row["start_ns"] == 1_682_725_898_094_364_000


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "t.json: ends too early"),
        *((empty, "t.json: distributedInfo is missing") for empty in (b"{}", b'{"traceEvents": []}')),
        (b"garbage", "t.json: is no JSON object, as traces of PyTorch are"),
        (b"[1]", "t.json: is no JSON object, as traces of PyTorch are"),
        (b'{"traceEvents": 3}', "t.json: traceEvents is no list"),
        (b'{"traceEvents": [{}, {"a": ]}', "t.json: traceEvents, event 2: is not JSON: Expecting value"),
        (b'{"traceEvents": [{} {}]}', "t.json: traceEvents, event 1: is not JSON: ',' or ']' is missing behind it"),
        (b'{"traceEvents": [{}', "t.json: ends too early"),
        (b'{"a": 1} {}', "t.json: goes on behind its end"),
        (b'{"a" 1}', "t.json: is not JSON: ':' is missing"),
        (b'{"a": "\xff"}', "t.json: is not text: invalid start byte"),
        (b'{"a": ' + b"[" * 100_000, "t.json: the value of 'a': is not JSON: it nests too deeply"),
        (b"\x1f\x8bgarbage", "t.json: cannot be unpacked: "),
        (gzip.compress(b"{}" + b" " * 1000, mtime=0)[:-9], "t.json: cannot be unpacked: it was cut off"),
        (b'{"distributedInfo": {"rank": -1}}', "t.json: distributedInfo: rank: "),
        (json.dumps(trace(kernel() | {"dur": -1})).encode(), "t.json: traceEvents, event 1: dur: "),
        (json.dumps(trace(kernel(args={"Seq": -1}))).encode(), "t.json: kernel at 100.5 us: Seq: "),
    ],
)
def test_garbage_is_refused_with_its_place(data: bytes, sentence: str) -> None:
    assert refusal(lambda: parse_kineto([("t.json", [data])], "j")).startswith(sentence)
    twice = refusal(lambda: read(trace(kernel()), trace(kernel())))
    assert twice.startswith("1.json: is of rank 5, and so is 0.json")


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_JSON = st.recursive(
    _PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=12
)


@given(st.lists(_JSON, max_size=5), _JSON, st.integers(2, 40), st.booleans(), st.sampled_from([None, 2]))
def test_trace_read_in_pieces_is_the_trace(
    events: list[Any], other: object, size: int, packed: bool, indent: int | None
) -> None:
    data = json.dumps({"a": other, "traceEvents": events, "b": other}, indent=indent).encode()
    data = gzip.compress(data, mtime=0) if packed else data
    pieces = [data[n : n + size] for n in range(0, len(data), size)]
    assert list(read_trace("t", pieces)) == [("a", other), *(("traceEvents", one) for one in events), ("b", other)]


@given(st.binary(max_size=200), st.integers(0, 900))
def test_whatever_stands_in_a_trace_gives_rows_or_a_sentence(noise: bytes, place: int) -> None:
    data = json.dumps(trace(kernel(), launch())).encode()
    try:
        parse_kineto([("t.json", [data[:place] + noise + data[place:]])], "j").tables()
    except BadInput as refused:
        assert str(refused).startswith("t.json: ")  # noqa: PT017  # either is right


def test_real_traces_give_every_operation_that_pytorch_called() -> None:
    folder = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not folder:
        pytest.skip("LOCKSTEP_PUBLIC_DATA does not name the folder with public data: no real traces to read")
    paths = sorted(Path(folder, "kineto_hta").glob("*.json.gz"))
    reading = parse_kineto(((str(path), [path.read_bytes()]) for path in paths), "j")
    rows = reading.tables()["collectives"].to_pylist()
    assert (len(rows), reading.unread, {row["host"] for row in rows}) == (20, {}, {"rank-0", "rank-1"})
    assert {row["func"] for row in rows} == {"AllReduce", "AllGather", "AlltoAll"}
    # An operation ends together on both ranks: the last gather of each, to a millisecond.
    last = [max(row["end_ns"] for row in rows if row["host"] == host) for host in ("rank-0", "rank-1")]
    assert abs(last[0] - last[1]) < 1_000_000
