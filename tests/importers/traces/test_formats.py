"""Files of other tools become captures through the command, or one sentence, and nothing half-written."""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from cli.imports import command
from importers.traces.formats import FORMATS, import_recordings, recognize
from lockstep.capture.files import read_capture
from lockstep.errors import BadInput
from tests.importers.traces.test_alertmanager import alert, notification
from tests.importers.traces.test_flight_recorder import T0, dump, entry
from tests.importers.traces.test_gpud import T0 as GPUD_T0
from tests.importers.traces.test_gpud import component, event
from tests.importers.traces.test_inspector import T0_US, line, verbose
from tests.importers.traces.test_kineto import BASE_NS, kernel, launch, trace
from tests.importers.traces.test_nccl_tests import HEAD, ROWS, TAIL
from tests.importers.traces.test_ras import member, status
from tests.importers.traces.test_step_logs import ITERATION, LOSSES

TEXTS = {
    "alertmanager": notification(alert()),
    "flight-recorder": pickle.dumps(dump(entry())),
    "gpud": json.dumps([component(event())]).encode(),
    "inspector": json.dumps(line()).encode() + b"\n",
    "kineto": json.dumps(trace(kernel())).encode(),
    "megatron": ITERATION,
    "mlperf": LOSSES,
    "nccl-tests": (HEAD + ROWS + TAIL).encode(),
    "ras": json.dumps(status(member(0))).encode(),
}


def inspected(host: str) -> bytes:
    timed = line(verbose((T0_US + 1, T0_US + 8)), header={"rank": int(host[1:])}, hostname=host)
    return json.dumps(timed).encode() + b"\n"


def traced(rank: int) -> bytes:
    return gzip.compress(json.dumps(trace(kernel(), launch(), rank=rank)).encode())


DUMP = pickle.dumps(dump(entry(), entry(state="scheduled", collective_seq_id=8)))
ANSWER = json.dumps([component(event())]).encode()


@pytest.mark.parametrize(
    ("name", "files", "hosts", "start_ns", "lasts_ns", "counts"),
    [
        (
            "inspector",
            {"a10.log": inspected("a10"), "a2.log": inspected("a2")},
            ("a2", "a10"),
            T0_US * 1000,
            8_000,
            {"comms": 2, "collectives": 2},
        ),
        ("flight-recorder", {"rank_1": DUMP}, ("rank-1",), T0, 0, {"comms": 1, "collectives": 1, "progress": 1}),
        ("nccl-tests", {"n.log": TEXTS["nccl-tests"]}, ("a1", "a2"), T0, 0, {"comms": 3, "events": 2}),
        (
            "kineto",
            {f"{rank}.json.gz": traced(rank) for rank in (4, 5)},
            ("rank-4", "rank-5"),
            BASE_NS + 90_000,
            30_750,
            {"comms": 2, "collectives": 2},
        ),
        ("gpud", {f"{host}.events.json": ANSWER for host in ("h1", "h2")}, ("h1", "h2"), GPUD_T0, 0, {"events": 2}),
    ],
)
def test_files_become_a_capture_of_their_time_and_hosts(
    tmp_path: Path,
    name: str,
    files: dict[str, bytes],
    hosts: tuple[str, ...],
    start_ns: int,
    lasts_ns: int,
    counts: dict[str, int],
) -> None:
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
        os.utime(tmp_path / file, ns=(T0, T0))
    import_recordings(FORMATS[name], [tmp_path / file for file in files], tmp_path / "c.tar.zst", "j")
    capture = read_capture(tmp_path / "c.tar.zst")
    assert (capture.info.job, capture.info.hosts) == ("j", hosts)
    assert (capture.info.start_ns, capture.info.end_ns) == (start_ns, start_ns + lasts_ns)
    assert {table: rows.num_rows for table, rows in capture.tables.items()} == counts


@pytest.mark.parametrize("name", FORMATS)
def test_recording_is_recognized_by_what_is_in_it_and_what_nobody_reads_is_not(tmp_path: Path, name: str) -> None:
    file = tmp_path / "saved under any name"
    file.write_bytes(TEXTS[name])
    assert recognize(file) == name
    file.write_bytes(gzip.compress(TEXTS[name]))
    assert recognize(file) == ("kineto" if name == "kineto" else None), "no other importer unpacks"
    file.write_text(json.dumps(dump(entry())))
    assert recognize(file) == "flight-recorder"
    garbage = (b"", b"garbage", b"\x1f\x8bgarbage", b"\x80\x02garbage", b'{"loss": 1.5}\n', pickle.dumps({"a": 1}))
    for content in garbage:
        file.write_bytes(content)
        assert recognize(file) is None


@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_is_reported_and_a_file_that_is_wrong_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    file = tmp_path / "rank_1"
    for content in (b"garbage\n", *([b""] if name == "inspector" else [])):
        file.write_bytes(content)
        with pytest.raises(BadInput, match=f"^{file}|tell nothing that a capture"):
            import_recordings(FORMATS[name], [file], tmp_path / "c", "j")
        assert [file.name for file in tmp_path.iterdir()] == ["rank_1"]
    file.write_bytes(TEXTS[name])
    reported: list[int] = []
    import_recordings(FORMATS[name], [file], tmp_path / "c", "j", reported.append)
    assert sum(reported) == len(TEXTS[name])


def test_command_names_the_job_after_the_capture_if_it_has_no_name_and_says_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(json.dumps(line()) + "\n")
    target = tmp_path / "night.tar.zst"
    command("inspector", [tmp_path / "a.log"], target)
    printed = capsys.readouterr()
    assert printed.out == ""
    untimed = "1 execution times were left out, because nothing tells when they began"
    assert printed.err.replace("\n", " ").strip() == f"{untimed} wrote {target}"
    assert read_capture(target).info.job == "night"

    with pytest.raises(BadInput, match="--job has no meaning for nccl-callbacks"):
        command("nccl-callbacks", [tmp_path / "x"], tmp_path / "c", job="j")
