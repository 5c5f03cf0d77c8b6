"""Recordings are made and become captures, or one sentence says why not and nothing is left behind."""

from pathlib import Path

from importers.traces.nccl_callbacks import Trace, read_events
from lockstep.capture.files import read_capture
from tests.cli.commands import Run, check_failure
from tests.importers.traces.traces import TRACES, read_lines, write_lines

TOGGLE = TRACES / "K_toggle_n232.jsonl.xz"


def test_trace_becomes_the_same_capture_and_says_what_it_lacks(
    lockstep: Run, plugin_library: Path, tmp_path: Path
) -> None:
    first, again = tmp_path / "a.tar.zst", tmp_path / "b.tar.zst"
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", first, "--plugin", plugin_library)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == ["6 kernel times cannot be true and were left out", f"wrote {first}"]
    capture = read_capture(first)
    assert (capture.info.job, capture.info.hosts) == ("K_toggle_n232", ("h0", "h1"))
    assert capture.tables["collectives"].num_rows == 16
    lockstep("import", "nccl-callbacks", TOGGLE, "--out", again, LOCKSTEP_PLUGIN=str(plugin_library))
    assert first.read_bytes() == again.read_bytes()


def test_what_cannot_be_imported_is_one_sentence_and_no_file(
    lockstep: Run, plugin_library: Path, tmp_path: Path
) -> None:
    lines = read_lines(TOGGLE)
    wrong = write_lines(tmp_path / "t.jsonl", [*lines[:50], lines[50] | {"type": "Ballet"}])
    text, absent = tmp_path / "text.so", tmp_path / "no.so"
    text.write_text("not a library")
    refused: list[tuple[str, Path, Path, str]] = [
        ("tea-leaves", TOGGLE, plugin_library, "there is no format 'tea-leaves'; the known ones are: nccl-callbacks"),
        ("nccl-callbacks", TOGGLE, absent, f"there is no NCCL plugin at {absent}: build it with `make plugin`"),
        ("nccl-callbacks", TOGGLE, text, f"cannot be played through {text}: "),
        ("nccl-callbacks", wrong, plugin_library, f"{wrong}, line 51: there is no event type 'Ballet'"),
        ("nccl-callbacks", tmp_path / "t", plugin_library, f"{tmp_path}/t: No such file or directory"),
    ]
    for kind, file, plugin, sentence in refused:
        check_failure(lockstep("import", kind, file, "--out", tmp_path / "c", "--plugin", plugin), sentence)
    check_failure(lockstep("import", "nccl-callbacks", "--out", tmp_path / "c"), "FILES", code=2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.jsonl", "text.so"]
    (tmp_path / "c").write_text("precious")
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", tmp_path / "c", "--plugin", plugin_library)
    check_failure(outcome, "exists already; captures are never overwritten")
    assert (tmp_path / "c").read_text() == "precious"


def test_job_is_recorded_no_trace_overwritten_and_no_ring_told(
    lockstep: Run, tmp_path: Path, live_rings: Path
) -> None:
    outcome = lockstep("record", "--out", tmp_path / "out", "--seconds", "0.5", "--rings", live_rings)
    file = tmp_path / "out" / "job_7.jsonl.xz"
    assert outcome.code == 0
    assert outcome.err.splitlines()[-1] == f"wrote {file}, 1 ranks"
    assert len(list(read_events(Trace(file)))) > 100
    assert list((tmp_path / "out").iterdir()) == [file]
    written = file.read_bytes()
    again = lockstep("record", "--out", tmp_path / "out", "--seconds", "0.1", "--rings", live_rings)
    check_failure(again, f"{file} exists already; traces are never overwritten")
    assert file.read_bytes() == written
    outcome = lockstep("record", "--out", tmp_path / "out", "--rings", tmp_path)
    check_failure(outcome, f"no process on this host records into {tmp_path}")
