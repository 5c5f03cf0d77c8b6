"""A job's last minutes come as a capture that can be read elsewhere."""

import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.captures import CaptureFolder, Replay, replay_apart
from api.routes.captures import Operation, Operations
from lockstep.capture.files import Capture, CaptureInfo, read_capture
from lockstep.clock import ManualClock
from lockstep.config import Settings
from lockstep.errors import BadInput, GatewayFull, LockstepError, NotPresent
from lockstep.records import Collective, Comm, Event, TransferStat
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.views.build import NOW, heartbeat, incident_on, load_job
from tests.builders import SECOND, T0, make, rows
from tests.lockstep.capture.build import write_capture
from tests.lockstep.state.build import verdict
from tests.waiting import LIMIT_S, eventually


def store_job(api: Api, job: str, host: str, ended_s_ago: int = 10) -> None:
    """Put a communicator, a collective and an event of a host into the store, as of a moment ago."""
    timestamp_ns = api.parts.clock.now_ns() - ended_s_ago * SECOND
    for name, row in {
        "comms": make(Comm, job=job, host=host, init_ns=timestamp_ns),
        "collectives": make(Collective, job=job, host=host, enqueue_ns=timestamp_ns),
        "events": make(Event, host=host, ts_ns=timestamp_ns),
    }.items():
        api.parts.store.insert(TABLE_BY_NAME[name], rows(row), token=f"{job}/{name}")


def test_what_makes_no_sense_leaves_nothing_on_disk(
    shared_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_job(shared_api, "tidy", host="tidy")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert shared_api.get("/api/v1/jobs/tidy/capture").status_code == 200
    unknown = shared_api.get("/api/v1/jobs/nobody/capture")
    assert check_problem(unknown, 404, "not-found") == "the store knows no job 'nobody'"
    for since_s in ("0", "-1", "86401", "soon"):
        check_problem(shared_api.get("/api/v1/jobs/tidy/capture", {"since_s": since_s}), 422, "bad-request")
    assert list(folder.iterdir()) == []


PATH = "/api/v1/captures"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("captures")
    with running_api(folder, shared_store, settings=Settings(state_dir=folder)) as running:
        yield running


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A capture of two ranks that do nothing wrong, with a verdict that somebody once gave."""
    tables = {
        "comms": rows(*(make(Comm, job="there", comm=1, rank=n, nranks=2, host=f"x{n}") for n in (0, 1))),
        "transfer_stats": rows(make(TransferStat, job="there", comm=1, rank=0, peer=1, host="x0")),
        "agents": rows(heartbeat("x0", NOW)),
    }
    info = CaptureInfo(job="there", start_ns=T0, end_ns=NOW, hosts=("x0", "x1"))
    file = tmp_path / "given.tar.zst"
    write_capture(file, Capture(info, None, tables), [verdict("there")])
    return file


def test_capture_becomes_a_job_that_can_be_looked_at(api: Api, archive: Path) -> None:
    admin = bearer(api.make_token("admin"))
    answer = api.client.post(f"{PATH}?job=case-1", content=archive.read_bytes(), headers=admin)
    assert answer.status_code == 201
    told = answer.json()
    assert (told["job"], told["original_job"], told["hosts"]) == ("case-1", "there", 2)
    assert told["rows"] == {"comms": 2, "transfer_stats": 1, "agents": 1}
    assert [rank["host"] for rank in api.get("/api/v1/jobs/case-1/ranks").json()["items"]] == ["x0", "x1"]
    assert [each["job"] for each in api.get(PATH).json()["items"]] == ["case-1"]
    heard = {agent["host"] for agent in api.get("/api/v1/agents", {"since_s": 30 * 86_400}).json()["items"]}
    assert "x0" not in heard, "rows about hosts stay in the archive"
    (line,) = (each for each in api.get("/api/v1/audit").json()["items"] if each["what"] == "import_capture")
    assert (line["subject"], line["why"]) == ("case-1", "there")


def check_here(upload: Path, _: int) -> None:
    """Look at an archive in this process, where that is not what matters: another takes a second for each."""
    try:
        read_capture(upload)
    except LockstepError as error:
        raise BadInput(str(error)) from None


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.captures.check_capture", check_here)


@pytest.mark.usefixtures("checked_here")
def test_capture_is_refused_under_a_bad_name_or_with_bad_content_and_can_be_deleted(api: Api, archive: Path) -> None:
    admin, whole = bearer(api.make_token("admin")), archive.read_bytes()

    def refusal(job: str, content: bytes = whole) -> str:
        answer = api.client.post(PATH, params={"job": job}, content=content, headers=admin)
        return check_problem(answer, 400, "bad-input")

    load_job(api.parts.store, "live")
    assert "choose another name" in refusal("live")
    for job in ("../x", ".hidden", "a/b", "a b", "ü"):
        assert "is no name for an imported job" in refusal(job)
    before = set((api.parts.settings.state_dir / "captures").glob("**/*"))
    for content in (b"", b"not a capture", b"\x28\xb5\x2f\xfd" + b"\0" * 100):
        refusal("bad", content)
    assert set((api.parts.settings.state_dir / "captures").glob("**/*")) == before
    api.client.post(PATH, params={"job": "gone"}, content=whole, headers=admin)
    assert api.client.delete(f"{PATH}/gone", headers=admin).status_code == 204
    check_problem(api.client.delete(f"{PATH}/gone", headers=admin), 404, "not-found")
    check_problem(api.client.post(f"{PATH}/none/replay", headers=admin), 404, "not-found")
    check_problem(api.get("/api/v1/operations/none"), 404, "not-found")
    with pytest.raises(NotPresent, match="no capture was brought in as job 'x'"):
        CaptureFolder(archive.parent / "never-used").find("x")
    assert CaptureFolder(archive.parent / "never-used").list() == []


@given(st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("checked_here")
def test_capture_with_bytes_changed_is_taken_or_refused(api: Api, archive: Path, data: st.DataObject) -> None:
    content = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = f"{PATH}?job=odd-{data.draw(st.uuids())}"
    answer = api.client.post(path, content=bytes(content), headers=bearer(api.make_token("admin")))
    assert answer.status_code == 201 or check_problem(answer, 400, "bad-input")


@pytest.mark.slow
def test_capture_is_judged_anew_and_its_old_verdict_comes_with_it(api: Api, archive: Path) -> None:
    admin = bearer(api.make_token("admin"))
    api.client.post(PATH, params={"job": "again"}, content=archive.read_bytes(), headers=admin)
    answer = api.client.post(f"{PATH}/again/replay", headers=bearer(api.make_token("act")))
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
    place = answer.headers["Location"]
    eventually(lambda: api.get(place).json()["state"] in ("done", "failed"))
    done = api.get(place).json()
    assert (done["state"], done["problem"]) == ("done", None)
    assert (done["result"]["verdicts"], done["result"]["rows"]) == ([], 4)
    assert [each["component"] for each in done["result"]["before"]] == ["nic:h3/eth1"]


@pytest.mark.slow
def test_archive_that_cannot_be_judged_fails_with_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar.zst"
    broken.write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"broken\.tar\.zst: is not a whole \.tar\.zst"):
        replay_apart(broken, lambda child: None)


def test_incident_is_exported_with_its_verdict(api: Api, tmp_path: Path) -> None:
    load_job(api.parts.store, "sick")
    save_incidents(api.parts.control, [incident_on("nic:sick-h1/eth0", "sick-1", job="sick", opened_ns=NOW)], None)
    answer = api.get("/api/v1/incidents/sick-1/capture")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/zstd")
    file = tmp_path / "incident.tar.zst"
    file.write_bytes(answer.content)
    capture = read_capture(file)
    assert (capture.info.job, capture.info.hosts) == ("sick", ("sick-h0", "sick-h1"))
    assert capture.info.start_ns < T0 < NOW < capture.info.end_ns
    assert capture.tables["transfer_stats"].num_rows == 40


def is_over(operations: Operations, begun: Operation) -> bool:
    return operations.find(begun.id).state in ("done", "failed")


def test_operations_wait_for_each_other_up_to_a_bound_and_are_seen_to_fail() -> None:
    operations, go = Operations(ManualClock(5)), threading.Event()

    def wait(started: object) -> Replay:
        go.wait(60)
        return Replay(verdicts=(), rows=1)

    begun = [operations.begin(f"c{number}", wait) for number in range(8)]
    with pytest.raises(GatewayFull, match="8 captures wait to be judged already"):
        operations.begin("c9", wait)
    go.set()
    eventually(lambda: all(is_over(operations, each) for each in begun))
    assert operations.find(begun[0].id).result == Replay(verdicts=(), rows=1)

    def refuse(started: object) -> Replay:
        raise BadInput("it is no capture")

    def break_down(started: object) -> Replay:
        raise ZeroDivisionError

    refused, broken = operations.begin("a", refuse), operations.begin("b", break_down)
    eventually(lambda: is_over(operations, refused) and is_over(operations, broken))
    assert operations.find(refused.id).problem == "it is no capture"
    assert operations.find(broken.id).problem == "the server's log says more"
    operations.close()


def test_child_that_runs_is_ended_with_the_operations() -> None:
    operations, running = Operations(ManualClock(5)), threading.Event()

    def work(started: object) -> Replay:
        with subprocess.Popen(["sleep", "600"]) as child:
            assert callable(started)
            started(child)
            running.set()
            child.wait()
        raise BadInput("it was ended")

    begun = operations.begin("a", work)
    assert running.wait(LIMIT_S)
    operations.close()
    assert operations.find(begun.id).problem == "it was ended"
