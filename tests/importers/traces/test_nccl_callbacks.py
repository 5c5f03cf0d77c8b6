"""A trace is read line by line, and what is wrong with it is one sentence that names file and line."""

import lzma
from pathlib import Path

import pytest

from importers.traces.nccl_callbacks import Trace, read_events, spool_traces
from lockstep.errors import BadInput
from tests.importers.traces.traces import TRACES, Event, read_lines, write_lines

ABOUT: Event = {"run": "r", "nccl": "2.28.9", "ranks": 1}
COMM: Event = {"id": "ab", "nNodes": 2, "nRanks": 2, "rank": 0, "ts_init": 5, "ts_fini": 90, "name": ""}
HEADER: Event = {"rank": 0, "header": {"pid": 7, "host": "a", "api": 5, "mono0": 3, "real0": 1003, "comms": [COMM]}}
COLL: Event = {"r": 0, "ts": 10, "ev": "start", "type": "Coll", "h": 1, "tid": 1, "comm": 0, "seq": 4}
COLL |= {"func": "AllReduce", "count": 8, "dtype": "ncclFloat32"}
STOP: Event = {"r": 0, "ts": 11, "ev": "stop", "type": "Coll", "h": 1, "tid": 1}


def refuse(path: Path, sentence: str) -> None:
    """Check that the file is refused with this sentence after its name."""
    with pytest.raises(BadInput) as refused:
        list(read_events(Trace(path)))
    assert str(refused.value) == f"{path}, {sentence}"


def test_whole_trace_gives_its_headers_and_every_callback(tmp_path: Path) -> None:
    trace = Trace(write_lines(tmp_path / "t.jsonl", [ABOUT, HEADER, COLL, STOP]))
    assert list(read_events(trace)) == [(0, COLL), (0, STOP)]
    assert (trace.about.run, trace.about.nccl, trace.about.live) == ("r", "2.28.9", False)
    assert trace.ranks[0].unix_ns(10) == 1010
    assert trace.ranks[0].comms[0].nranks == 2
    older = Trace(write_lines(tmp_path / "t.jsonl", [ABOUT | {"t_snap_ns": 77}, HEADER, COLL]))
    list(read_events(older))
    assert (older.about.live, older.about.snapshot_mono_ns) == (True, 77)
    header = {"header": HEADER["header"] | {"comms": [COMM | {"rank": 1}]}}
    event = {name: value for name, value in COLL.items() if name != "r"}
    bare = Trace(write_lines(tmp_path / "t.jsonl", [header, event]))
    assert list(read_events(bare)) == [(1, event)], "of the rank in its first communicator"


def test_file_is_read_compressed_or_plain_whatever_its_name_and_one_that_is_cut_or_damaged_is_refused(
    tmp_path: Path,
) -> None:
    small = TRACES / "K_toggle_n232.jsonl.xz"
    (tmp_path / "renamed.jsonl").write_bytes(small.read_bytes())
    plain_lines = write_lines(tmp_path / "plain.xz", read_lines(small))
    assert list(read_events(Trace(tmp_path / "renamed.jsonl"))) == list(read_events(Trace(plain_lines)))
    path, packed = tmp_path / "t", (TRACES / "f_base.jsonl.xz").read_bytes()
    plain = write_lines(path, [ABOUT, HEADER, COLL]).read_bytes()
    two_lines = write_lines(path, [ABOUT, HEADER]).read_bytes()
    odd_lines = (b"\xff\xfe", b"[1, 2]", b"12", b'{"a": 1e999999}{', b"[" * 100_000)
    for content, sentence in (
        (packed[:-20_000], r"line \d+: the compressed file ends in the middle$"),
        (packed[:30_000] + bytes(100) + packed[30_100:], r"line \d+: "),
        (plain[:-10], "line 3: is not JSON: "),
        *((two_lines + odd + b"\n", "line 3: is not ") for odd in odd_lines),
        (two_lines.replace(b"2.28.9", b"newest"), "line 1: nccl: "),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"t, {sentence}"):
            list(read_events(Trace(path)))


SENSELESS: list[tuple[Event, str]] = [
    ({"type": "Kernel"}, "there is no event type 'Kernel'"),
    ({"type": None}, "there is no event type None"),
    ({"ev": "begin"}, "'begin' is none of start, stop, state"),
    ({"ts": "10"}, "ts is '10', not a number"),
    ({"ts": -1}, "ts is -1, not a number"),
    ({"h": None}, "h is None, not a number"),
    ({"h": 1 << 70}, f"h is {1 << 70}, not a number"),
    ({"r": 3}, "rank 3 has no header above"),
    ({"r": "0"}, "rank '0' has no header above"),
    ({"comm": 1}, "comm is 1, but the rank has 1 communicators"),
    ({"count": "many"}, "count is 'many', not a number"),
    ({"func": ["AllReduce"]}, "func is ['AllReduce'], neither a name nor a number"),
    ({"stream": "0xzz"}, "stream is '0xzz', not an address"),
    ({"type": "ProxyOp"}, "ProxyOp lacks peer, ch, send, nSteps, pid"),
    ({"ev": "state"}, "there is no state None"),
    ({"ev": "state", "state": "Dancing"}, "there is no state 'Dancing'"),
]
MISPLACED: list[tuple[Event, str]] = [
    (STOP | {"ts": 9}, "time goes backwards, from 10 to 9"),
    (HEADER, "a second header of rank 0, or no number"),
    ({"note": "x"}, "is neither a header nor a callback"),
]
NO_HEADERS: list[tuple[Event, str]] = [
    ({"host": "a/b"}, "host: Value error, 'a/b' cannot be the name of a host or a NIC"),
    ({"api": 8}, "api: Input should be less than or equal to 7"),
    ({"comms": [COMM | {"id": "xyz"}]}, "comms.0.id: String should match pattern '^[0-9a-fA-F]{1,16}$'"),
]


def test_line_that_makes_no_sense_or_does_not_belong_there_is_refused_and_a_bomb_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changed, sentence in SENSELESS:
        refuse(write_lines(tmp_path / "t", [ABOUT, HEADER, COLL | changed]), f"line 3: {sentence}")
    for line, sentence in MISPLACED:
        refuse(write_lines(tmp_path / "t", [ABOUT, HEADER, COLL, line]), f"line 4: {sentence}")
    for changed, sentence in NO_HEADERS:
        wrong = {"rank": 0, "header": HEADER["header"] | changed}
        refuse(write_lines(tmp_path / "t", [ABOUT, wrong]), f"line 2: {sentence}")
    monkeypatch.setattr("importers.traces.nccl_callbacks._MOST_LINE_BYTES", 1 << 20)
    (tmp_path / "t.xz").write_bytes(lzma.compress(b" " * (8 << 20)))
    refuse(tmp_path / "t.xz", "line 1: is longer than 1 MiB")


def header(rank: int, host: str = "a", nodes: int = 2) -> Event:
    comms = [COMM | {"rank": rank, "nNodes": nodes}]
    return {"rank": rank, "header": HEADER["header"] | {"host": host, "comms": comms}}


def trace(path: Path, *ranks: Event, about: Event = ABOUT) -> Path:
    events = [COLL | {"r": line["rank"]} for line in ranks] + [STOP | {"r": line["rank"]} for line in ranks]
    return write_lines(path, [about, *ranks, *events])


def test_ranks_get_a_host_and_a_gpu_and_those_of_a_hang_are_looked_at_when_the_recorder_did(tmp_path: Path) -> None:
    both, named = [header(0), header(1)], {"hosts": {"0": "x", "1": "y"}}
    cases: list[tuple[list[Event], Event, list[tuple[str, int]]]] = [
        (both, {}, [("h0", 0), ("h1", 0)]),  # NCCL took the ranks of one machine for hosts
        ([header(0, nodes=1), header(1, nodes=1)], {}, [("a", 0), ("a", 1)]),
        ([header(0, "a"), header(1, "b"), header(2, "a")], {}, [("a", 0), ("b", 0), ("a", 1)]),
        (both, named, [("x", 0), ("y", 0)]),  # line 1 knows best
    ]
    for number, (ranks, about, expected) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        spooled = spool_traces([trace(tmp_path / "t", *ranks, about=ABOUT | about)], tmp_path / str(number))
        assert [(one.origin.host, one.origin.gpu) for one in spooled.recordings] == expected
    path = trace(tmp_path / "t", *both, about=ABOUT | {"live": True, "snapshot_mono_ns": 5_000})
    spooled = spool_traces([path], tmp_path)
    assert [one.snapshot_ns for one in spooled.recordings] == [6_000, 6_000]
    assert spooled.end_ns == 6_001


def test_files_are_parts_of_one_run_and_those_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a", header(0, "a")), trace(tmp_path / "b", header(1, "b"))]
    spooled = spool_traces(files, tmp_path)
    assert [one.rank for one in spooled.recordings] == [0, 1]
    assert read_lines(spooled.recordings[1].file)[1:] == [COLL | {"r": 1}, STOP | {"r": 1}]
    assert (spooled.start_ns, spooled.end_ns) == (1010, 1012)
    (tmp_path / "twice").mkdir()
    one, other = trace(tmp_path / "a", header(0)), trace(tmp_path / "b", header(0))
    with pytest.raises(BadInput, match="b: rank 0 is in another of the files too"):
        spool_traces([one, other], tmp_path / "twice")
    third = trace(tmp_path / "c", header(1), about=ABOUT | {"run": "q"})
    (tmp_path / "more").mkdir()
    with pytest.raises(BadInput, match="c: is of run 'q', not 'r' as the first file"):
        spool_traces([one, third], tmp_path / "more")
    with pytest.raises(BadInput, match="t: there is no callback in it"):
        spool_traces([write_lines(tmp_path / "t", [ABOUT, header(0)])], tmp_path)
