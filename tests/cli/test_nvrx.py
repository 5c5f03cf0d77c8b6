"""ft_launcher is told what the control database says: to go on, unless it cannot bring a decision about by itself."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from cli.nvrx import Attribution, answer_logs, serving_attribution
from lockstep.clock import ManualClock
from lockstep.decision import Action, Decision
from lockstep.errors import BadInput, ServerAway
from lockstep.state.decisions import save_decisions, save_isolated
from lockstep.state.incidents import save_incidents
from planner.controllers.nvrx import METHOD, SERVICE, NvrxController, NvrxOptions
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.cli.commands import LOCKSTEP, Run, check_failure, environment_for
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated
from tests.planner import build
from tests.planner.controllers.test_nvrx import decode
from tests.waiting import LIMIT_S


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore()) as running:
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [decision("d1", created_ns=4 * 10**18)], None)
        save_isolated(running.parts.control, isolated(reason="ECC errors"), running.lease("planner"))
        yield running


@contextmanager
def serving(tmp_path: Path, *words: str) -> Iterator[str]:
    """Run `lockstep nvrx …` and give what it says when it is up; it must end well when told to."""
    environment = environment_for(tmp_path / "state")
    with subprocess.Popen([LOCKSTEP, "nvrx", *words], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(LIMIT_S) == 0
            finally:
                process.kill()


def ask_health(socket: Path) -> dict[int, object]:
    import grpc

    with grpc.insecure_channel(f"unix://{socket}") as channel:
        return decode(channel.unary_unary(f"/{SERVICE}/{METHOD}")(b"", timeout=LIMIT_S))


def test_host_is_judged_by_what_the_control_database_says(api: Api, tmp_path: Path) -> None:
    socket, control = tmp_path / "nvhcd.sock", api.parts.control
    to = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
    with serving(tmp_path, "health", "--socket", str(socket), "--name", "h3", *to) as said:
        assert said == f"lockstep: health of h3 at unix://{socket}\n"
        out = ask_health(socket)
        save_isolated(control, isolated(reason="ECC errors", state="returned"), api.lease("planner"))
        back = ask_health(socket)
    assert (out.get(1, 0), out.get(4, "")) == (0, "ECC errors")
    assert (back.get(1, 0), back.get(4, "")) == (1, "")


@pytest.mark.slow
def test_host_is_judged_by_the_controllers_notes(tmp_path: Path) -> None:
    socket, notes = tmp_path / "nvhcd.sock", tmp_path / "notes"
    NvrxController(NvrxOptions(notes)).isolate("h1", "mark-1", "xid 79")
    with serving(tmp_path, "health", "--socket", str(socket), "--name", "h1", "--directory", str(notes)):
        told = ask_health(socket)
    assert (told.get(1, 0), told[4]) == (0, "xid 79")


@pytest.mark.slow
def test_failed_cycle_is_answered_from_the_newest_decision(api: Api, tmp_path: Path) -> None:
    to = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
    with serving(tmp_path, "attribution", "--listen", "127.0.0.1:0", *to) as said:
        url = said.split()[-1]
        with httpx.Client(base_url=url, trust_env=False, timeout=LIMIT_S) as launcher:
            launcher.post("/logs", json={"log_path": "/logs/c0.log", "job_id": "train"})
            answer = launcher.get("/logs", params={"log_path": "/logs/c0.log"}).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "RESTART")
    assert json.dumps(answer).count("a spare is cheaper than waiting") == 2


def test_place_to_listen_that_makes_no_sense_is_said(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("nvrx", "health", "--socket", str(tmp_path / "none" / "s")), "there is no directory")
    check_failure(lockstep("nvrx", "health", "--socket", str(tmp_path / ("s" * 200))), "cannot listen on")
    check_failure(lockstep("nvrx", "attribution", "--listen", "8644"), "--listen '8644' is no host:port")


ASKED_NS = 1_000_000_000_000


def advice(action: Action = "restart_process", **changes: object) -> Decision:
    fields = {"expires_ns": ASKED_NS + 1, "mode": "execute", "reason": "gpu:h3/2 is dead"}
    return build.decision(action, (), **(fields | changes))


class Server:
    def __init__(self) -> None:
        self.newest: Decision | None = None
        self.is_away = False
        self.asked: list[str] = []

    def find(self, job: str) -> Decision | None:
        self.asked.append(job)
        if self.is_away:
            raise ServerAway("no Lockstep server answers")
        return self.newest


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(ASKED_NS)


@pytest.fixture
def attribution(server: Server, clock: ManualClock) -> Attribution:
    asked = Attribution(server.find, clock)
    assert asked.submit({"log_path": "/logs/c0.log", "job_id": "17", "user": "ada"})["submitted"] is True
    return asked


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (advice("none"), "CONTINUE"),
        (advice("reroute"), "CONTINUE"),
        (advice("restart_process"), "RESTART"),
        (advice("replace"), "RESTART"),
        (advice("reconfigure"), "STOP"),
        (advice("reconfigure", mode="propose"), "RESTART"),
        (advice("reconfigure", held_because="blast radius"), "RESTART"),
        (advice("none", answered_by="d2"), "RESTART"),
    ],
)
def test_launcher_is_stopped_only_for_what_is_under_way_and_beyond_it(made: Decision, word: str) -> None:
    answer = answer_logs(made, is_settled=False)
    assert answer["status"] == "completed"
    assert answer["recommendation"]["action"] == word
    assert "gpu:h3/2 is dead" in answer["recommendation"]["reason"]


def test_question_waits_for_a_decision_and_no_longer_than_one_can_come_also_of_a_server_that_is_away(
    attribution: Attribution, server: Server, clock: ManualClock
) -> None:
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    server.newest = advice("reconfigure", expires_ns=ASKED_NS)  # of an earlier fault: it had run out
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    server.newest = advice()
    answer = attribution.result("/logs/c0.log")
    assert (answer["status"], answer["result"]["result_id"], server.asked) == ("completed", "d1", ["17"] * 3)
    server.newest, server.is_away = None, True
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    clock.advance(60)
    for server.is_away in (True, False):
        answer = attribution.result("/logs/c0.log")
        assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "UNKNOWN")


def test_only_so_many_logs_are_remembered_and_others_settled_at_once(
    attribution: Attribution, server: Server, clock: ManualClock
) -> None:
    assert attribution.result("/logs/other.log")["status"] == "completed"
    assert server.asked == []
    for number in range(1000):
        attribution.submit({"log_path": f"/logs/n{number}.log", "job_id": "17"})
    attribution.result("/logs/c0.log")
    assert server.asked == [], "the oldest is forgotten"
    attribution.result("/logs/n0.log")
    named = Attribution(server.find, clock, job="llm")
    named.submit({"log_path": "/logs/c0.log"})
    named.result("/logs/c0.log")
    assert server.asked == ["17", "llm"], "the job that was named goes before the launcher's"


@pytest.mark.parametrize(
    "reported", [{}, {"log_path": ""}, {"log_path": 7}, {"log_path": "/a"}, {"log_path": "/a", "job_id": 7}]
)
def test_submission_that_says_too_little_is_bad_input(attribution: Attribution, reported: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"log_path|--job"):
        attribution.submit(reported)


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    server = Server()
    server.newest = advice("reconfigure", expires_ns=10**19)
    asked = Attribution(server.find, ManualClock(1))
    with serving_attribution(asked, "127.0.0.1", 0) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def test_cycle_is_posted_its_answer_fetched_and_nonsense_refused(client: httpx.Client) -> None:
    reported = {"log_path": "/logs/c 0.log", "user": "ada", "job_id": "17", "analysis_intent": "terminal"}
    posted = client.post("/logs", json=reported, headers={"accept": "application/json"})
    assert (posted.status_code, posted.json()["submitted"]) == (200, True)
    answer = client.get("/logs", params={"log_path": "/logs/c 0.log", "wait": False}).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "STOP")
    assert client.get("/healthz").json() == {"status": "ok"}
    for body in (b"", b"{", b"[]", b"{}", b"\xff"):
        answer = client.post("/logs", content=body)
        assert answer.status_code == 400
        assert answer.json()["detail"]
    answer = client.post("/logs", content=b" " * 70_000)
    assert (answer.status_code, "at most 65536 bytes" in answer.json()["detail"]) == (400, True)
    for method, path in (("GET", "/"), ("GET", "/logs"), ("POST", "/other")):
        assert client.request(method, path).status_code == 404
