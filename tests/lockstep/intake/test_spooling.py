"""Files of one run become one run; ranks have hosts, GPUs and a common last look."""

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.intake.spooling import spool_traces
from tests.lockstep.intake.test_nccl_callbacks import ABOUT, COLL, COMM, HEADER, STOP
from tests.lockstep.intake.traces import Event, read_lines, write_lines


def header(rank: int, host: str = "a", nodes: int = 2) -> Event:
    return {
        "rank": rank,
        "header": HEADER["header"] | {"host": host, "comms": [COMM | {"rank": rank, "nNodes": nodes}]},
    }


def trace(path: Path, *ranks: Event, about: Event = ABOUT) -> Path:
    events = [COLL | {"r": line["rank"]} for line in ranks] + [STOP | {"r": line["rank"]} for line in ranks]
    return write_lines(path, [about, *ranks, *events])


def hosts_of(path: Path, folder: Path) -> list[tuple[str, int | None]]:
    return [(one.origin.host, one.origin.gpu) for one in spool_traces([path], folder).recordings]


def test_ranks_of_one_machine_that_nccl_took_for_hosts_are_hosts(tmp_path: Path) -> None:
    path = trace(tmp_path / "t", header(0), header(1))
    assert hosts_of(path, tmp_path) == [("h0", 0), ("h1", 0)]


def test_ranks_inside_one_host_are_its_gpus(tmp_path: Path) -> None:
    path = trace(tmp_path / "t", header(0, nodes=1), header(1, nodes=1))
    assert hosts_of(path, tmp_path) == [("a", 0), ("a", 1)]


def test_hosts_that_differ_keep_their_names(tmp_path: Path) -> None:
    path = trace(tmp_path / "t", header(0, "a"), header(1, "b"), header(2, "a"))
    assert hosts_of(path, tmp_path) == [("a", 0), ("b", 0), ("a", 1)]


def test_line_1_knows_the_hosts_best(tmp_path: Path) -> None:
    path = trace(tmp_path / "t", header(0), header(1), about=ABOUT | {"hosts": {"0": "x", "1": "y"}})
    assert hosts_of(path, tmp_path) == [("x", 0), ("y", 0)]


def test_several_files_are_parts_of_one_run(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a", header(0, "a")), trace(tmp_path / "b", header(1, "b"))]
    spooled = spool_traces(files, tmp_path)
    assert [one.rank for one in spooled.recordings] == [0, 1]
    assert read_lines(spooled.recordings[1].file)[1:] == [COLL | {"r": 1}, STOP | {"r": 1}]
    assert (spooled.start_ns, spooled.end_ns) == (1010, 1012)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = trace(tmp_path / "a", header(0)), trace(tmp_path / "b", header(0))
    with pytest.raises(BadInput, match="b: rank 0 is in another of the files too"):
        spool_traces([one, other], tmp_path)
    third = trace(tmp_path / "c", header(1), about=ABOUT | {"run": "q"})
    (tmp_path / "more").mkdir()
    with pytest.raises(BadInput, match="c: is of run 'q', not 'r' as the first file"):
        spool_traces([one, third], tmp_path / "more")


def test_trace_without_callbacks_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [ABOUT, header(0)])
    with pytest.raises(BadInput, match="t: there is no callback in it"):
        spool_traces([path], tmp_path)


def test_all_ranks_of_a_hang_are_looked_at_when_the_recorder_did(tmp_path: Path) -> None:
    path = trace(tmp_path / "t", header(0), header(1), about=ABOUT | {"live": True, "snapshot_mono_ns": 5_000})
    spooled = spool_traces([path], tmp_path)
    assert [one.looked_ns for one in spooled.recordings] == [6_000, 6_000]
    assert spooled.end_ns == 6_001
