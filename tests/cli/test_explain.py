"""Files as they lie in a folder are told apart, and each run among them is judged; what is none is named."""

import json
import os
import pickle
from pathlib import Path

from tests.cli.commands import Run, check_failure
from tests.importers.traces.test_flight_recorder import dump, entry
from tests.importers.traces.test_gpud import component, event


def lay_dumps(folder: Path) -> None:
    """Lay down dumps of three of four ranks: two wait in an operation that rank 2 has not enqueued."""
    folder.mkdir()
    waits = entry(collective_seq_id=8, op_id=8, state="started")
    status = {"last_enqueued_collective": 8, "last_started_collective": 8, "last_completed_collective": 7}
    for rank, told in enumerate((dump(entry(), waits, pg_status={"0": status}),) * 2 + (dump(entry()),)):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(told, protocol=2))


def test_each_run_is_judged_by_itself_and_what_is_missing_is_named(lockstep: Run, tmp_path: Path) -> None:
    lay_dumps(tmp_path / "night")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken.tar.zst").write_bytes(b"garbage")
    (tmp_path / "night" / "README").write_text("what happened")
    (tmp_path / "h3.json").write_text(json.dumps([component(event())]))
    (tmp_path / "bad_rank_0").write_bytes(pickle.dumps({"pg_config": 1}))
    told = lockstep("explain", tmp_path)
    assert told.code == 0
    assert f"{tmp_path / 'night'}: flight-recorder, 3 files" in told.out
    assert "rank 2 on rank-2 never entered" in told.out
    assert "of 1 of 4 ranks there is no file here (rank 3)" in told.out
    assert "host:h3: " in told.out, "what a health daemon reported"
    assert f"{tmp_path / 'bad_rank_0'}: " in told.err
    assert "broken.tar.zst" in told.err, "one bad capture keeps nothing else from being told"
    assert f"not a recording that Lockstep reads: {tmp_path / 'night' / 'README'}" in told.err

    page = tmp_path / "page.html"
    (tmp_path / "night").rename(tmp_path / "[b]night")
    assert f"{tmp_path}/[b]night: flight-recorder" in lockstep("explain", tmp_path / "[b]night").out
    told = lockstep("explain", tmp_path / "[b]night", "--json", "--html", page)
    (run,) = json.loads(told.out)
    assert [verdict["component"] for verdict in run["verdicts"]] == ["host:rank-2"]
    assert "rank-2" in page.read_text()


def test_folder_without_recordings_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("explain", tmp_path), "none of these files is a recording that Lockstep reads")
    check_failure(lockstep("explain", tmp_path / "absent"), "No such file or directory")
