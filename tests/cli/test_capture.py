"""A job's last minutes are saved whole under their name, or not at all."""

from pathlib import Path

import pytest

from cli.capture import parse_since
from lockstep.capture.files import read_capture
from lockstep.errors import BadInput
from lockstep.store.store import Store
from tests.api.build import running_api
from tests.api.routes.test_captures import store_job
from tests.cli.answering import answering, unused_address
from tests.cli.commands import Run, check_failure

JOB = "team/run 1?#%2F"  # schedulers let people name jobs as they like


@pytest.mark.parametrize(("text", "length_s"), [("90s", 90), ("10m", 600), ("2h", 7200), ("0s", 0)])
def test_length_of_time_is_a_number_with_a_unit(text: str, length_s: int) -> None:
    assert parse_since(text) == length_s


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "1.5h", "10d", "10mm", "soon"])
def test_other_lengths_of_time_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is no length of time: write 90s, 10m or 2h"):
        parse_since(text)


def test_nonsense_since_is_one_sentence_and_nothing_is_written(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("capture", "--job", "j1", "--out", tmp_path / "a", "--since", "soon")
    check_failure(outcome, "'soon' is no length of time: write 90s, 10m or 2h")
    assert list(tmp_path.iterdir()) == []


def test_running_job_is_saved_as_directory_and_as_archive(
    lockstep: Run, tmp_path: Path, embedded_store: Store
) -> None:
    with running_api(tmp_path, embedded_store) as api:
        store_job(api, JOB, host="h0")
        options = ("--job", JOB, "--server", str(api.client.base_url), "--token", api.make_token("read"))
        targets = [tmp_path / "new" / name for name in ("a.tar.zst", "b")]
        outcomes = [lockstep("capture", "--out", target, *options) for target in targets]
        short = lockstep("capture", "--out", tmp_path / "c", "--since", "1s", *options)
    for target, outcome in zip(targets, outcomes, strict=True):
        assert (outcome.code, outcome.out, outcome.err) == (0, "", f"wrote {target}\n")
        assert read_capture(target).info.job == JOB
        assert read_capture(target).tables["collectives"].num_rows == 1
    assert short.code == 0
    assert set(read_capture(tmp_path / "c").tables) == {"comms"}
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.tar.zst", "b"]


def test_job_that_the_server_does_not_know_is_one_sentence_and_nothing_is_left(
    lockstep: Run, tmp_path: Path, embedded_store: Store
) -> None:
    target = tmp_path / "new" / "a"
    with running_api(tmp_path, embedded_store) as api:
        options = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
        outcome = lockstep("capture", "--job", "nobody", "--out", target, *options)
        too_long = lockstep("capture", "--job", "nobody", "--out", target, "--since", "25h", *options)
    check_failure(outcome, "the store knows no job 'nobody'")
    check_failure(too_long, "query.since_s: Input should be less than or equal to 86400")
    assert list(target.parent.iterdir()) == []


def test_capture_that_exists_is_never_overwritten(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    outcome = lockstep("capture", "--job", "j1", "--out", tmp_path / "a")
    check_failure(outcome, f"{tmp_path}/a exists already; captures are never overwritten")
    assert (tmp_path / "a").read_text() == "precious"


def test_server_that_is_not_there_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    server = unused_address()
    outcome = lockstep("capture", "--job", "j1", "--out", tmp_path / "a", "--server", server)
    check_failure(outcome, f"no Lockstep server answers at {server}")


@pytest.mark.parametrize("name", ["a", "a.tar.zst"])
def test_answer_that_is_no_capture_leaves_nothing(lockstep: Run, tmp_path: Path, name: str) -> None:
    with answering(200, b"<html>please log in</html>") as server:
        outcome = lockstep("capture", "--job", "j1", "--out", tmp_path / name, "--server", server)
    check_failure(outcome, "capture.tar.zst: is not a whole .tar.zst")
    assert list(tmp_path.iterdir()) == []
