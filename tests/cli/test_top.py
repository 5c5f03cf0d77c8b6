"""lockstep top shows what is wrong in one picture, says when the server is away, and comes back by itself."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from cli.top import choose_jobs, draw_bars, find_ailing, find_slowness, find_trend, find_waiting, watch
from lockstep.client import Client
from lockstep.client.client import AgentView, Job, ListedDecision
from lockstep.clock import ManualClock
from lockstep.decision import Mode
from lockstep.errors import ServerRefused
from lockstep.records import Comm
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.verdict import Impact, Incident
from tests.api.build import Api, running_api
from tests.api.views.build import heartbeat, put, step, waiting
from tests.builders import SECOND, make
from tests.cli.answering import answering, unused_address
from tests.cli.commands import Run, check_failure
from tests.http_serving import Quiet, serving
from tests.lockstep.state.build import decision, incident

EMPTY: dict[str, object] = {"items": [], "next": None}
Condition = Any  # a literal of several words


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a job that became slow, an incident, a proposal, and a host that is silent."""
    folder = tmp_path_factory.mktemp("top")
    with open_store(f"chdb://{folder / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        with running_api(folder, store) as running:
            fill(running)
            yield running


def fill(api: Api) -> None:
    now_ns = api.parts.clock.now_ns()
    begun_ns = now_ns - 9000 * SECOND
    put(api.parts.store, [make(Comm, job="train", nranks=8, init_ns=begun_ns)])
    put(api.parts.store, [waiting("train", 0, now_ns, state="wire", since_ns=now_ns)])
    lengths_s = [2.0] * 20 + [3.0] * 10
    put(api.parts.store, (step("train", n, 0, now_ns - (30 - n) * SECOND, s) for n, s in enumerate(lengths_s)))
    put(api.parts.store, [heartbeat("h17", now_ns - 600 * SECOND)])
    opened = incident("i1", job="train", opened_ns=now_ns - 300 * SECOND)
    proposed = decision("d1", job="train").model_copy(update={"mode": "propose", "expires_ns": now_ns + 10**15})
    save_incidents(api.parts.control, [opened], None)
    save_decisions(api.parts.control, [proposed], None)


@pytest.fixture(scope="module")
def to(api: Api) -> tuple[str, ...]:
    return ("--server", str(api.client.base_url), "--token", api.make_token("read"))


def test_one_picture_has_jobs_incidents_agents_and_what_waits(lockstep: Run, to: tuple[str, ...], api: Api) -> None:
    shown = lockstep("top", "--once", *to)
    assert (shown.code, shown.err) == (0, "")
    assert "h3's eth1 sends at a tenth of its rate, says Zoë" in shown.out
    assert "lockstep decisions approve d1" in shown.out
    assert "1.42x" in shown.out  # as the incident tells: the steps before are slow ones soon
    assert "Agents, 1 reporting, 1 not well" in shown.out
    assert "h17" in shown.out
    told = json.loads(lockstep("top", "--json", *to).out)
    assert [one["job"]["job"] for one in told["jobs"]] == ["train"]
    assert (told["jobs"][0]["job"]["condition"], told["jobs"][0]["ratio"]) == ("slow", 1.42)
    assert told["incidents"][0]["verdict"]["class"] == "comm_slow"
    assert [one["id"] for one in told["waiting"]] == ["d1"]
    assert (told["agents"], told["ailing"][0]["host"]) == (1, "h17")
    assert lockstep("top", "--once", *to[:2], LOCKSTEP_TOKEN=to[3]).code == 0
    check_failure(lockstep("top", "--once", *to[:2]), "this needs a token")
    with Client(to[1], api.make_token("act")) as client:
        client.reject("d1", "not now")
    assert json.loads(lockstep("top", "--json", *to).out)["waiting"] == []


def test_server_that_is_not_there_is_one_sentence_and_a_bad_interval_bad_usage(lockstep: Run, tmp_path: Path) -> None:
    server = unused_address()
    check_failure(lockstep("top", "--once", "--server", server), f"no Lockstep server answers at {server}")
    check_failure(lockstep("top", "--every", "0"), "0.2", code=2)


def watched(url: str, is_enough: Callable[[str], bool]) -> tuple[list[str], ManualClock]:
    stop, clock, pictures = threading.Event(), ManualClock(), list[str]()

    def show(shown: RenderableType) -> None:
        console = Console(file=io.StringIO(), width=200, color_system=None)
        console.print(shown)
        pictures.append(console.file.getvalue())  # type: ignore[attr-defined] # it is the StringIO above
        if is_enough(pictures[-1]) or len(pictures) > 50:
            stop.set()

    with Client(url) as client:
        watch(client, clock, 2.0, stop, show)
    return pictures, clock


def test_server_that_is_away_is_said_and_shown_again_when_it_is_back() -> None:
    refusals = [503, 503]

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = refusals.pop() if refusals else 200
            body = json.dumps({"version": "9.9"} | EMPTY if status == 200 else {"detail": "the store is away"})
            self.reply(status, body.encode())

    with serving(Handler) as url:
        pictures, clock = watched(url, lambda text: "Lockstep 9.9" in text)
    assert len(pictures) == 3
    assert "the store is away; trying again every 2 s" in pictures[0]
    assert "the store is away" not in pictures[2]
    assert clock.now_ns() == 4 * SECOND


def test_what_was_known_stays_while_the_server_is_away() -> None:
    class Handler(Quiet, BaseHTTPRequestHandler):
        answers = 0

        def do_GET(self) -> None:
            Handler.answers += 1
            known = {"version": "9.9", "analysis": "analysis 42 s behind"} | EMPTY
            self.reply(200 if Handler.answers <= 6 else 502, json.dumps(known).encode())

    with serving(Handler) as url:
        pictures, _ = watched(url, lambda text: "answered 502" in text)
    assert "Lockstep 9.9" in pictures[-1]
    assert "analysis 42 s behind" in pictures[-1]
    assert "what follows is what was known before" in pictures[-1]


def test_nobody_at_the_address_is_waited_for_and_a_refusal_that_will_not_pass_ends_it() -> None:
    pictures, clock = watched(unused_address(), lambda _: False)
    assert all("no Lockstep server answers at" in picture for picture in pictures)
    assert clock.now_ns() == 50 * 2 * SECOND
    with answering(401, b'{"detail": "this token is unknown"}') as url, pytest.raises(ServerRefused, match="unknown"):
        watched(url, lambda _: True)


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_bars_are_as_many_as_values_and_the_longest_is_full(values: list[float]) -> None:
    drawn = draw_bars(tuple(values))
    shown = values[-20:]
    assert len(drawn) == (len(shown) if max(shown, default=0) > 0 else 0)
    assert not drawn or drawn[shown.index(max(shown))] == "█"


def job(name: str, condition: Condition = "running", attempt: int = 0) -> Job:
    return Job(job=name, attempt=attempt, condition=condition, ranks=8, hosts=1, first_ns=0, last_ns=1)


def agent(host: str, *, is_silent: bool = False, lag_s: float = 0.0, dropped_lately: int = 0) -> AgentView:
    fixed = {"version": "0.1.0", "last_seen_ns": 1, "dropped": dropped_lately, "spool_bytes": 0}
    return AgentView(host=host, is_silent=is_silent, lag_s=lag_s, dropped_lately=dropped_lately, **fixed)


def listed(name: str = "d1", *, mode: Mode = "propose", **changes: object) -> ListedDecision:
    made = ListedDecision.model_validate(decision(name).as_json() | {"expires_ns": 1000, "mode": mode})
    return made.model_copy(update=changes)


def test_jobs_and_agents_come_worst_first_with_the_slowness_of_their_incidents() -> None:
    jobs = [job("a"), job("b", "ended"), job("c", "slow"), job("d", "crashed"), job("e", "hung")]
    again = [job("f", "ended", attempt=1), job("f", "running"), job("g", "ended"), job("g", "slow", attempt=1)]
    assert [one.job for one in choose_jobs([*jobs, *again])] == ["d", "e", "c", "g", "a"]
    told = [slowed("a", 1.2), slowed("a", None), slowed("a", 1.7), slowed("b", 3.0)]
    assert find_slowness(job("a", "slow"), told) == 1.7
    assert find_slowness(job("a", "slow", attempt=1), told) is None
    assert find_slowness(job("c"), told) is None
    agents = [agent("late", lag_s=60), agent("loses", dropped_lately=5), agent("silent", is_silent=True)]
    assert [one.host for one in find_ailing([agent("well", lag_s=2), *agents])] == ["silent", "loses", "late"]


@pytest.mark.parametrize("times", [[], [1.0] * 10, [0.0] * 30])
def test_without_a_past_there_is_no_trend(times: list[float]) -> None:
    assert find_trend(times) is None
    assert find_trend([2.0] * 25 + [60.0] + [2.0] * 4) == 1.0, "one long step is none"


def slowed(job_name: str, ratio: float | None) -> Incident:
    told = incident(job=job_name)
    impact = Impact(step_time_ratio=ratio, ranks_waiting=1)
    return told.model_copy(update={"verdict": told.verdict.model_copy(update={"impact": impact})})


@given(st.lists(st.floats(0.1, 10), min_size=11, max_size=60), st.floats(0.5, 4))
def test_trend_knows_no_unit(times: list[float], unit: float) -> None:
    assert find_trend([one * unit for one in times]) == pytest.approx(find_trend(times))


@pytest.mark.parametrize(
    "changes",
    [{"mode": "observe"}, {"action": "none"}, {"execution": "done"}, {"expires_ns": 400}, {"incident": "i9"}],
    ids=["only observed", "nothing to do", "done", "expired", "incident is over"],
)
def test_newest_decision_waits_while_its_incident_lasts_and_nothing_was_done(changes: dict[str, object]) -> None:
    assert find_waiting([listed(), listed("d0")], [incident("i1")], now_ns=500) == [listed()]
    assert find_waiting([listed().model_copy(update=changes)], [incident("i1")], now_ns=500) == []
    assert find_waiting([listed("d2", mode="observe"), listed("d1")], [incident("i1")], now_ns=500) == []
