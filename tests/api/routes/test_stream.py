"""The stream tells what happens as it happens, and after a break what happened meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from api.routes import stream as feed_module
from api.routes.stream import ChangeFeed
from lockstep.config import Settings
from lockstep.errors import ControlAway, NotAllowed
from lockstep.sections import ApiSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_decisions, save_execution
from lockstep.state.incidents import Change, changes_since, newest_change, save_incidents
from lockstep.state.tokens import revoke_token
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import execution
from tests.waiting import LIMIT_S, eventually

PATH = "/api/v1/incidents/stream"
PERIOD_S = 0.005


class Heard(NamedTuple):
    number: int
    name: str
    subject: str


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    usual = ChangeFeed.__init__.__defaults__
    assert usual is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.routes.stream.ChangeFeed.__init__.__defaults__", (PERIOD_S, *usual[1:]))
        with running_api(tmp_path_factory.mktemp("stream"), FakeStore()) as running:
            yield running


@contextmanager
def listening(
    api: Api, after: int | str | None = None, query: str = "", token: str = ""
) -> Iterator[Iterator[Heard]]:
    headers = bearer(token or api.make_token("read")) | ({"Last-Event-ID": str(after)} if after is not None else {})
    with api.client.stream("GET", PATH + query, headers=headers, timeout=LIMIT_S) as answer:
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        yield _events(lines)


def _events(lines: Iterator[str]) -> Iterator[Heard]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            thing = json.loads(fields["data"])
            yield Heard(int(fields["id"]), fields["event"], thing.get("decision") or thing["id"])
            fields = {}


def save(api: Api, name: str, state: str = "open", job: str = "train") -> None:
    save_incidents(api.parts.control, [incident(name, state=state, job=job)], None)  # type: ignore[arg-type]  # a plain word


def test_incident_is_told_from_its_opening_to_its_end_with_decisions_and_executions(api: Api) -> None:
    control, told = api.parts.control, []
    with listening(api) as events:
        for state in ("open", "open", "closed"):
            save(api, "i-life", state)
            told.append(next(events)[1:])
        save_decisions(control, [decision("d-act", incident="i-life")], None)
        run = execution("d-act").model_copy(update={"incident": "i-life"})
        save_execution(control, run, api.lease("planner"))
        told += [next(events)[1:] for _ in range(2)]
    incidents = [(f"incident.{word}", "i-life") for word in ("opened", "updated", "closed")]
    assert told == [*incidents, ("decision.made", "d-act"), ("execution.changed", "d-act")]


def test_listener_goes_on_where_it_broke_off(api: Api) -> None:
    with listening(api) as events:
        save(api, "i-before")
        last = next(events).number
    save(api, "i-meanwhile-1")
    save(api, "i-before", "closed")
    save(api, "i-meanwhile-2")
    with listening(api, after=last) as events:
        heard = [next(events) for _ in range(3)]
    told = [("opened", "i-meanwhile-1"), ("closed", "i-before"), ("opened", "i-meanwhile-2")]
    assert [event[1:] for event in heard] == [(f"incident.{word}", name) for word, name in told]
    assert [event.number for event in heard] == sorted(event.number for event in heard)


def test_listener_to_one_job_hears_of_no_other_and_two_hear_the_same(api: Api) -> None:
    with listening(api, query="?job=mine") as events:
        save(api, "i-other", job="other")
        save(api, "i-mine", job="mine")
        assert next(events).subject == "i-mine"
    with listening(api) as one, listening(api) as other:
        save(api, "i-both")
        assert next(one) == next(other)


def test_id_that_we_never_gave_is_refused(api: Api) -> None:
    for last in ("x", "-1", "1.5", "9" * 30):
        answer = api.client.get(PATH, headers=bearer(api.make_token("read")) | {"Last-Event-ID": last})
        assert "this server's are numbers" in check_problem(answer, 400, "bad-input")


def test_token_that_listens_more_than_its_share_is_refused_and_others_are_not(control: ControlDatabase) -> None:
    feed = ChangeFeed(control, 8, lambda changes, known: None)
    with feed.seat("ann"), feed.seat("ann"):
        with pytest.raises(NotAllowed, match="listens 2 times already, a quarter of what"), feed.seat("ann"):
            pass
        with feed.seat("bob"):
            assert feed.listeners == 3
    assert feed.listeners == 0


def test_listeners_beyond_the_bound_are_asked_to_come_again(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore(), settings=Settings(api=ApiSettings(max_listeners=1))) as api:
        headers = bearer(api.make_token("read"))
        with listening(api):
            answer = api.client.get(PATH, headers=headers)
            expected = "1 listen already, which is as many as api.max_listeners allows"
            assert check_problem(answer, 503, "too-many-listeners") == expected
            assert answer.headers["Retry-After"] == "1"
        eventually(lambda: _status(api, headers) == 200)  # seats are given back


def _status(api: Api, headers: dict[str, str]) -> int:
    with api.client.stream("GET", PATH, headers=headers) as answer:
        return answer.status_code


def test_stream_of_a_revoked_token_ends_with_the_next_heartbeat(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.stream.ChangeFeed.follow.__defaults__", (0.01,))
    token = api.make_token("read")
    with listening(api, token=token) as events:
        revoke_token(api.parts.control, token.split("_")[1], 1)
        assert list(events) == [], "nothing more, and an end"


@asynccontextmanager
async def running(
    control: ControlDatabase, watched: list[int] | None = None, most: int = 3
) -> AsyncIterator[ChangeFeed]:
    def watch(changes: Sequence[Change], known: int) -> None:
        if watched is not None:
            watched.extend(change.number for change in changes if change.first > known)

    made = ChangeFeed(control, most, watch, PERIOD_S)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        made.close()
        await task


def save_change(control: ControlDatabase, *names: str) -> None:
    save_incidents(control, [incident(name) for name in names], None)


async def collect(made: ChangeFeed, known: int, count: int) -> list[str]:
    heard: list[str] = []
    async with asyncio.timeout(60):
        async for page in made.follow(known):
            heard += [change.subject for change in page]
            if len(heard) >= count:
                break
    return heard


def test_what_is_remembered_is_forgotten_before_listeners_come_for_it(control: ControlDatabase) -> None:
    told: list[str] = []

    async def scene() -> None:
        made = ChangeFeed(control, 3, lambda *_: None, PERIOD_S, before_notify=lambda: told.append("forget"))
        task = asyncio.create_task(made.run())
        known = await made.begin(None)
        save_change(control, "i1")
        assert await collect(made, known, 1) == ["i1"]
        told.append("heard")
        made.close()
        await task

    asyncio.run(scene())
    assert "forget" in told[: told.index("heard")]


def test_listener_that_was_away_hears_each_thing_once_as_it_is_now(control: ControlDatabase) -> None:
    async def listen(known: int) -> list[str]:
        async with running(control) as made:
            return await collect(made, await made.begin(known), 2)

    save_change(control, "a")
    known = newest_change(control)
    for _ in range(3):
        save_change(control, "b")
    save_change(control, "a")
    assert asyncio.run(listen(known)) == ["b", "a"]


def test_listener_far_behind_is_served_from_disk(control: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "KEPT", 2)
    monkeypatch.setattr(feed_module, "PAGE", 3)
    names = [f"i{number}" for number in range(10)]

    async def listen() -> tuple[list[str], list[str]]:
        async with running(control) as made:
            for name in names:
                await asyncio.to_thread(save_change, control, name)
            late = await collect(made, 0, 10)
            return late, await collect(made, 0, 10)

    first, second = asyncio.run(listen())
    assert first == second == names


def test_silence_is_broken_by_heartbeats_and_close_ends_every_stream(control: ControlDatabase) -> None:
    async def listen() -> list[str]:
        async with running(control) as made, asyncio.timeout(60):
            assert await anext(aiter(made.follow(0, heartbeat_s=0.01))) == []
            hearing = asyncio.create_task(collect(made, 0, 1))
            await asyncio.sleep(0)
            made.close()
            return await hearing

    async def begin() -> int:
        async with running(control) as made:
            return await made.begin(10**12)

    assert asyncio.run(listen()) == []
    save_change(control, "a")
    assert asyncio.run(begin()) == newest_change(control) == 1, "a number from the future begins now"


def test_database_that_was_away_is_asked_again(control: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [ControlAway("away"), ZeroDivisionError("a bug")]

    def flaky(db: ControlDatabase, number: int, limit: int) -> list[Change]:
        if faults:
            raise faults.pop()
        return changes_since(db, number, limit)

    monkeypatch.setattr(feed_module, "changes_since", flaky)

    async def listen() -> list[str]:
        async with running(control) as made:
            known = await made.begin(None)
            save_change(control, "a")
            while faults:
                await asyncio.sleep(PERIOD_S)
            return await collect(made, known, 1)

    assert asyncio.run(listen()) == ["a"]


def test_watcher_sees_every_change_once(control: ControlDatabase) -> None:
    watched: list[int] = []

    async def wait() -> None:
        async with running(control, watched) as made:
            known = await made.begin(None)
            while not made.is_following:
                await asyncio.sleep(PERIOD_S)
            save_change(control, "a", "b")
            await collect(made, known, 2)
            save_change(control, "b", "c")
            await collect(made, known + 2, 2)
            while len(watched) < 3:
                await asyncio.sleep(PERIOD_S)

    asyncio.run(wait())
    assert watched == [1, 2, 4], "new ones: a, b and c, and not b again"
