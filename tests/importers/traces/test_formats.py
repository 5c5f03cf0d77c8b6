"""Files of other tools become captures through the command, or one sentence, and nothing half-written."""

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from cli.imports import command
from importers.traces.formats import FORMATS, import_recordings, recognize
from lockstep.capture.files import Capture, read_capture
from lockstep.errors import BadInput
from tests.importers.traces.test_alertmanager import alert, notification
from tests.importers.traces.test_flight_recorder import T0, dump, entry
from tests.importers.traces.test_gpud import component, event
from tests.importers.traces.test_inspector import T0_US, line, verbose
from tests.importers.traces.test_kineto import kernel, launch, trace
from tests.importers.traces.test_nccl_tests import HEAD, ROWS, TAIL
from tests.importers.traces.test_ras import member, status
from tests.importers.traces.test_step_logs import ITERATION, LOSSES


def test_inspector_files_become_a_capture_of_their_time_and_hosts(tmp_path: Path) -> None:
    timed = line(verbose((T0_US + 1, T0_US + 8)))
    for host in ("a2", "a10"):
        told = timed | {"metadata": timed["metadata"] | {"hostname": host}}
        told["header"] = timed["header"] | {"rank": int(host[1:])}
        (tmp_path / f"{host}.log").write_text(json.dumps(told) + "\n")
    files = [tmp_path / "a10.log", tmp_path / "a2.log"]
    import_recordings(FORMATS["inspector"], files, tmp_path / "c.tar.zst", "j")
    capture = read_capture(tmp_path / "c.tar.zst")
    assert (capture.info.job, capture.info.hosts) == ("j", ("a2", "a10"))
    assert (capture.info.start_ns, capture.info.end_ns) == (T0_US * 1000, (T0_US + 8) * 1000)
    assert {name: rows.num_rows for name, rows in capture.tables.items()} == {"comms": 2, "collectives": 2}


def test_dumps_become_a_capture_and_what_was_left_out_is_counted(tmp_path: Path) -> None:
    (tmp_path / "rank_1").write_bytes(pickle.dumps(dump(entry(), entry(state="scheduled", collective_seq_id=8))))
    reading = import_recordings(FORMATS["flight-recorder"], [tmp_path / "rank_1"], tmp_path / "c", "j")
    capture = read_capture(tmp_path / "c")
    counts = {name: rows.num_rows for name, rows in capture.tables.items()}
    assert counts == {"comms": 1, "collectives": 1, "progress": 1}
    assert (capture.info.start_ns, capture.info.hosts) == (T0, ("rank-1",))
    assert sum(reading.unread.values()) == 1


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


@pytest.mark.parametrize("name", FORMATS)
def test_recording_is_recognized_by_what_is_in_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / "saved under any name"
    file.write_bytes(TEXTS[name])
    assert recognize(file) == name
    file.write_bytes(gzip.compress(TEXTS[name]))
    assert recognize(file) == ("kineto" if name == "kineto" else None), "no other importer unpacks"


def test_dump_as_json_is_recognized_and_what_nobody_reads_is_not(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text(json.dumps(dump(entry())))
    assert recognize(file) == "flight-recorder"
    for content in (
        b"",
        b"garbage",
        b"\x1f\x8bgarbage",
        b"\x80\x02garbage",
        b'{"loss": 1.5}\n',
        pickle.dumps({"a": 1}),
    ):
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


def test_command_names_the_job_after_the_capture_and_says_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(json.dumps(line()) + "\n")
    target = tmp_path / "night.tar.zst"
    command("inspector", [tmp_path / "a.log"], target)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.replace("\n", " ").strip() == " ".join(
        [
            "1 execution times were left out, because nothing tells when they began",
            f"wrote {target}",
        ]
    )
    assert read_capture(target).info.job == "night"


def import_as(name: str, folder: Path, *files: Path) -> Capture:
    import_recordings(FORMATS[name], list(files), folder / "c.tar.zst", "j")
    return read_capture(folder / "c.tar.zst")


def test_log_of_nccl_tests_becomes_a_capture_of_when_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "n.log").write_text(HEAD + ROWS + TAIL)
    os.utime(tmp_path / "n.log", ns=(T0, T0))
    capture = import_as("nccl-tests", tmp_path, tmp_path / "n.log")
    assert (capture.info.hosts, capture.info.start_ns) == (("a1", "a2"), T0)
    assert {name: rows.num_rows for name, rows in capture.tables.items()} == {"comms": 3, "events": 2}


def test_packed_traces_of_kineto_become_a_capture(tmp_path: Path) -> None:
    for rank in (4, 5):
        told = json.dumps(trace(kernel(), launch(), rank=rank)).encode()
        (tmp_path / f"{rank}.json.gz").write_bytes(gzip.compress(told))
    capture = import_as("kineto", tmp_path, tmp_path / "4.json.gz", tmp_path / "5.json.gz")
    assert capture.info.hosts == ("rank-4", "rank-5")
    assert {name: rows.num_rows for name, rows in capture.tables.items()} == {"comms": 2, "collectives": 2}
    assert len(set(capture.tables["comms"]["comm"].to_pylist())) == 1


def test_answers_of_gpud_become_a_capture_of_the_hosts_their_files_are_named_after(tmp_path: Path) -> None:
    files = [tmp_path / f"{host}.events.json" for host in ("h1", "h2")]
    for file in files:
        file.write_text(json.dumps([component(event())]))
    assert import_as("gpud", tmp_path, *files).tables["events"]["host"].to_pylist() == ["h1", "h2"]


def test_job_of_callbacks_cannot_be_told_again(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--job has no meaning for nccl-callbacks"):
        command("nccl-callbacks", [tmp_path / "x"], tmp_path / "c", job="j")
