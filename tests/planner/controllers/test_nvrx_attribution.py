"""The launcher is told to go on unless a decision is being carried out that it cannot bring about by itself."""

import pytest

from lockstep.clock import ManualClock
from lockstep.decision import Action, Cost, Decision, Mode
from lockstep.errors import BadInput, ServerAway
from planner.controllers.nvrx_attribution import Attribution, answer_logs

ASKED_NS = 1_000_000_000_000


def decision(
    action: Action = "restart_process",
    mode: Mode = "execute",
    held: str | None = None,
    expires_ns: int = ASKED_NS + 1,
) -> Decision:
    return Decision(
        id="d1", job="llm", incident="i1", generation=1, created_ns=0, expires_ns=expires_ns, severity=1, mode=mode,
        action=action, cost=Cost(), verdicts=("v1",), reason="gpu:h3/2 is dead", held_because=held,
    )  # fmt: skip


class Server:
    """What a Lockstep server says of each job."""

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
        (decision("reconfigure", held="blast radius"), "RESTART"),
    ],
)
def test_launcher_is_stopped_only_for_what_is_under_way_and_beyond_it(made: Decision, word: str) -> None:
    answer = answer_logs(made, is_settled=False)
    assert answer["status"] == "completed"
    assert answer["recommendation"]["action"] == word
    assert "gpu:h3/2 is dead" in answer["recommendation"]["reason"]


def test_question_waits_for_a_decision_and_no_longer_than_one_can_come(
    attribution: Attribution, server: Server, clock: ManualClock
) -> None:
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    server.newest = decision()
    answer = attribution.result("/logs/c0.log")
    assert (answer["status"], answer["result"]["result_id"], server.asked) == ("completed", "d1", ["17", "17"])
    server.newest = None
    clock.advance(60)
    answer = attribution.result("/logs/c0.log")
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "UNKNOWN")


def test_decision_that_had_run_out_is_about_an_earlier_fault(attribution: Attribution, server: Server) -> None:
    server.newest = decision("reconfigure", expires_ns=ASKED_NS)
    assert attribution.result("/logs/c0.log")["status"] == "pending"


def test_server_that_is_away_stops_nobody(attribution: Attribution, server: Server, clock: ManualClock) -> None:
    server.is_away = True
    assert attribution.result("/logs/c0.log")["status"] == "pending"
    clock.advance(60)
    assert attribution.result("/logs/c0.log")["recommendation"]["action"] == "UNKNOWN"


def test_log_that_nobody_posted_is_settled_at_once(attribution: Attribution, server: Server) -> None:
    assert attribution.result("/logs/other.log")["status"] == "completed"
    assert server.asked == []


def test_job_that_was_named_goes_before_the_launchers(server: Server, clock: ManualClock) -> None:
    named = Attribution(server.find, clock, job="llm")
    named.submit({"log_path": "/logs/c0.log"})
    named.result("/logs/c0.log")
    assert server.asked == ["llm"]


@pytest.mark.parametrize(
    "told", [{}, {"log_path": ""}, {"log_path": 7}, {"log_path": "/a"}, {"log_path": "/a", "job_id": 7}]
)
def test_submission_that_says_too_little_is_bad_input(attribution: Attribution, told: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"log_path|--job"):
        attribution.submit(told)


def test_only_so_many_logs_are_remembered(attribution: Attribution, server: Server) -> None:
    for number in range(1000):
        attribution.submit({"log_path": f"/logs/n{number}.log", "job_id": "17"})
    attribution.result("/logs/c0.log")
    assert server.asked == [], "the oldest is forgotten"
    attribution.result("/logs/n0.log")
    assert server.asked == ["17"]
