"""The launcher is told to go on unless a decision is being carried out that it cannot bring about by itself."""

from collections.abc import Iterator

import httpx
import pytest

from cli.nvrx import Attribution, answer_logs, serving_attribution
from lockstep.clock import ManualClock
from lockstep.decision import Action, Decision
from lockstep.errors import BadInput, ServerAway
from tests.planner import build

ASKED_NS = 1_000_000_000_000


def decision(action: Action = "restart_process", **changes: object) -> Decision:
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
        (decision("none"), "CONTINUE"),
        (decision("reroute"), "CONTINUE"),
        (decision("restart_process"), "RESTART"),
        (decision("replace"), "RESTART"),
        (decision("reconfigure"), "STOP"),
        (decision("reconfigure", mode="propose"), "RESTART"),
        (decision("reconfigure", held_because="blast radius"), "RESTART"),
        (decision("none", answered_by="d2"), "RESTART"),
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
    server.newest = decision("reconfigure", expires_ns=ASKED_NS)  # of an earlier fault: it had run out
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    server.newest = decision()
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
    server.newest = decision("reconfigure", expires_ns=10**19)
    asked = Attribution(server.find, ManualClock(1))
    with serving_attribution(asked, "127.0.0.1", 0) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def test_cycle_is_posted_and_its_answer_fetched(client: httpx.Client) -> None:
    reported = {"log_path": "/logs/c 0.log", "user": "ada", "job_id": "17", "analysis_intent": "terminal"}
    posted = client.post("/logs", json=reported, headers={"accept": "application/json"})
    assert (posted.status_code, posted.json()["submitted"]) == (200, True)
    answer = client.get("/logs", params={"log_path": "/logs/c 0.log", "wait": False}).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "STOP")
    assert client.get("/healthz").json() == {"status": "ok"}


def test_nonsense_is_refused_with_a_sentence(client: httpx.Client) -> None:
    for body in (b"", b"{", b"[]", b"{}", b"\xff"):
        answer = client.post("/logs", content=body)
        assert answer.status_code == 400
        assert answer.json()["detail"]
    answer = client.post("/logs", content=b" " * 70_000)
    assert (answer.status_code, "at most 65536 bytes" in answer.json()["detail"]) == (400, True)
    for method, path in (("GET", "/"), ("GET", "/logs"), ("POST", "/other")):
        assert client.request(method, path).status_code == 404
