"""Recordings become captures, or one sentence says why not and nothing is left behind."""

from pathlib import Path

from lockstep.capture.files import read_capture
from tests.cli.commands import Run, check_failure
from tests.importers.traces.traces import TRACES, read_lines, write_lines

TOGGLE = TRACES / "K_toggle_n232.jsonl.xz"


def test_trace_becomes_a_capture_and_what_was_left_out_is_said(
    lockstep: Run, plugin_library: Path, tmp_path: Path
) -> None:
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", tmp_path / "c", "--plugin", plugin_library)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == ["6 kernel times cannot be true and were left out", f"wrote {tmp_path}/c"]
    capture = read_capture(tmp_path / "c")
    assert (capture.info.job, capture.info.hosts) == ("K_toggle_n232", ("h0", "h1"))
    assert capture.tables["collectives"].num_rows == 16


def test_same_trace_gives_the_identical_file(lockstep: Run, plugin_library: Path, tmp_path: Path) -> None:
    for name in "ab":
        target = tmp_path / f"{name}.tar.zst"
        lockstep("import", "nccl-callbacks", TOGGLE, "--out", target, LOCKSTEP_PLUGIN=str(plugin_library))
    assert (tmp_path / "a.tar.zst").read_bytes() == (tmp_path / "b.tar.zst").read_bytes()


def test_format_that_nobody_knows_is_one_sentence_with_those_we_know(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("import", "tea-leaves", TOGGLE, "--out", tmp_path / "c")
    check_failure(outcome, "there is no format 'tea-leaves'; the known ones are: nccl-callbacks")


def test_plugin_that_is_not_there_is_one_sentence_that_says_how_to_build_it(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", tmp_path / "c", "--plugin", tmp_path / "no.so")
    check_failure(outcome, f"there is no NCCL plugin at {tmp_path}/no.so: build it with `make plugin`")


def test_library_that_is_no_plugin_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", tmp_path / "c", "--plugin", tmp_path / "text.so")
    check_failure(outcome, f"cannot be played through {tmp_path}/text.so: ")


def test_trace_that_is_wrong_leaves_nothing_behind(lockstep: Run, plugin_library: Path, tmp_path: Path) -> None:
    lines = read_lines(TOGGLE)
    path = write_lines(tmp_path / "t.jsonl", [*lines[:50], lines[50] | {"type": "Ballet"}])
    outcome = lockstep("import", "nccl-callbacks", path, "--out", tmp_path / "c", "--plugin", plugin_library)
    check_failure(outcome, f"{path}, line 51: there is no event type 'Ballet'")
    assert [file.name for file in tmp_path.iterdir()] == ["t.jsonl"]


def test_file_that_is_not_there_is_one_sentence(lockstep: Run, plugin_library: Path, tmp_path: Path) -> None:
    outcome = lockstep(
        "import", "nccl-callbacks", tmp_path / "t", "--out", tmp_path / "c", "--plugin", plugin_library
    )
    check_failure(outcome, f"{tmp_path}/t: No such file or directory")


def test_capture_that_exists_is_never_overwritten(lockstep: Run, plugin_library: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("precious")
    outcome = lockstep("import", "nccl-callbacks", TOGGLE, "--out", tmp_path / "c", "--plugin", plugin_library)
    check_failure(outcome, "exists already; captures are never overwritten")
    assert (tmp_path / "c").read_text() == "precious"


def test_nothing_to_read_is_bad_usage(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("import", "nccl-callbacks", "--out", tmp_path / "c"), "FILES", code=2)
