"""Recording what the jobs on this host do, from the command line."""

import lzma
from pathlib import Path

from importers.traces.nccl_callbacks import Trace, read_events
from tests.cli.commands import Run, check_failure


def test_job_is_recorded_under_its_name(lockstep: Run, tmp_path: Path, live_rings: Path) -> None:
    outcome = lockstep("record", "--out", tmp_path / "out", "--seconds", "0.5", "--rings", live_rings)

    file = tmp_path / "out" / "job_7.jsonl.xz"
    assert outcome.code == 0
    assert outcome.err.splitlines()[-1] == f"wrote {file}, 1 ranks"
    assert len(list(read_events(Trace(file)))) > 100
    assert list((tmp_path / "out").iterdir()) == [file]


def test_trace_is_never_overwritten(lockstep: Run, tmp_path: Path, live_rings: Path) -> None:
    file = tmp_path / "job_7.jsonl.xz"
    file.write_bytes(lzma.compress(b"mine"))
    outcome = lockstep("record", "--out", tmp_path, "--seconds", "0.1", "--rings", live_rings)

    check_failure(outcome, f"{file} exists already; traces are never overwritten")
    assert lzma.decompress(file.read_bytes()) == b"mine"


def test_host_without_ring_files_is_told_so(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("record", "--out", tmp_path / "out", "--rings", tmp_path)

    check_failure(outcome, f"no process on this host records into {tmp_path}")
