"""A job's last minutes come as a capture that can be read elsewhere."""

import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

from lockstep.capture.reading import read_capture
from lockstep.records import Collective, Comm, Event
from lockstep.tables import TABLE_BY_NAME
from tests.api.build import Api, check_problem
from tests.builders import SECOND, make, rows


def store_job(api: Api, job: str, host: str, ended_s_ago: int = 10) -> None:
    """Put a communicator, a collective and an event of a host into the store, as of a moment ago."""
    moment_ns = api.parts.clock.now_ns() - ended_s_ago * SECOND
    for name, row in {
        "comms": make(Comm, job=job, host=host, init_ns=moment_ns),
        "collectives": make(Collective, job=job, host=host, enqueue_ns=moment_ns),
        "events": make(Event, host=host, ts_ns=moment_ns),
    }.items():
        api.parts.store.insert(TABLE_BY_NAME[name], rows(row), token=f"{job}/{name}")


@pytest.mark.parametrize("job", ["job-1", "team/run 2", "a?b#c%2F"])
def test_capture_holds_what_the_store_knows_of_the_job(shared_api: Api, tmp_path: Path, job: str) -> None:
    store_job(shared_api, job, host=f"host of {job}")
    answer = shared_api.get(f"/api/v1/jobs/{quote(job, safe='')}/capture")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/zstd")
    archive = tmp_path / "capture.tar.zst"
    archive.write_bytes(answer.content)
    capture = read_capture(archive)
    assert (capture.info.job, capture.info.hosts) == (job, (f"host of {job}",))
    assert {name: table.num_rows for name, table in capture.tables.items()} == {
        "comms": 1,
        "collectives": 1,
        "events": 1,
    }


def test_capture_reaches_back_as_far_as_asked(shared_api: Api, tmp_path: Path) -> None:
    store_job(shared_api, "long", host="long", ended_s_ago=7200)
    for since_s, expected in ((60, {"comms"}), (86_400, {"comms", "collectives", "events"})):
        archive = tmp_path / f"{since_s}.tar.zst"
        archive.write_bytes(shared_api.get("/api/v1/jobs/long/capture", {"since_s": since_s}).content)
        assert set(read_capture(archive).tables) == expected


def test_job_that_the_store_does_not_know_is_not_found(shared_api: Api) -> None:
    answer = shared_api.get("/api/v1/jobs/nobody/capture")
    assert check_problem(answer, 404, "not-found") == "the store knows no job 'nobody'"


@pytest.mark.parametrize("since_s", ["0", "-1", "86401", "soon"])
def test_length_of_time_that_makes_no_sense_is_refused(shared_api: Api, since_s: str) -> None:
    check_problem(shared_api.get("/api/v1/jobs/j1/capture", {"since_s": since_s}), 422, "bad-request")


def test_nothing_is_left_on_disk(shared_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_job(shared_api, "tidy", host="tidy")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert shared_api.get("/api/v1/jobs/tidy/capture").status_code == 200
    assert shared_api.get("/api/v1/jobs/nobody/capture").status_code == 404
    assert list(folder.iterdir()) == []
