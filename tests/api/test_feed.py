"""Whoever listens hears each change once and in order, however long they were away, and costs nobody anything."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api import feed as feed_module
from api.feed import ChangeFeed
from lockstep.control.changes import Change, changes_since, newest_change
from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.incidents import save_incidents
from lockstep.errors import ControlAway, NotAllowed
from tests.lockstep.control.build import incident

PERIOD_S = 0.005


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


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


def save(control: ControlDatabase, *names: str) -> None:
    save_incidents(control, [incident(name) for name in names], None)


async def collect(made: ChangeFeed, known: int, count: int) -> list[str]:
    """Return what the next changes are about."""
    heard: list[str] = []
    async with asyncio.timeout(60):
        async for page in made.follow(known):
            heard += [change.subject for change in page]
            if len(heard) >= count:
                break
    return heard


def test_listener_hears_what_happens_from_now_on(control: ControlDatabase) -> None:
    async def listen() -> list[str]:
        async with running(control) as made:
            hearing = asyncio.create_task(collect(made, await made.begin(None), 3))
            save(control, "a")
            save(control, "b", "c")
            return await hearing

    save(control, "before")
    assert asyncio.run(listen()) == ["a", "b", "c"]


def test_what_is_remembered_is_forgotten_before_listeners_come_for_it(control: ControlDatabase) -> None:
    told: list[str] = []

    async def scene() -> None:
        made = ChangeFeed(control, 3, lambda *_: None, PERIOD_S, before_telling=lambda: told.append("forget"))
        task = asyncio.create_task(made.run())
        known = await made.begin(None)
        save(control, "i1")
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

    save(control, "a")
    known = newest_change(control)
    for _ in range(3):
        save(control, "b")
    save(control, "a")
    assert asyncio.run(listen(known)) == ["b", "a"]


def test_listener_far_behind_is_served_from_the_database(
    control: ControlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "KEPT", 2)
    monkeypatch.setattr(feed_module, "PAGE", 3)
    names = [f"i{number}" for number in range(10)]

    async def listen() -> tuple[list[str], list[str]]:
        async with running(control) as made:
            for name in names:
                await asyncio.to_thread(save, control, name)
            late = await collect(made, 0, 10)
            return late, await collect(made, 0, 10)

    first, second = asyncio.run(listen())
    assert first == second == names


def test_number_from_the_future_begins_now(control: ControlDatabase) -> None:
    async def begin() -> int:
        async with running(control) as made:
            return await made.begin(10**12)

    save(control, "a")
    assert asyncio.run(begin()) == newest_change(control) == 1


def test_silence_is_broken_by_heartbeats(control: ControlDatabase) -> None:
    async def first_page() -> list[Change]:
        async with running(control) as made, asyncio.timeout(60):
            return await anext(aiter(made.follow(0, heartbeat_s=0.01)))

    assert asyncio.run(first_page()) == []


def test_close_ends_every_stream(control: ControlDatabase) -> None:
    async def listen() -> list[str]:
        async with running(control) as made:
            hearing = asyncio.create_task(collect(made, 0, 1))
            await asyncio.sleep(0)
            made.close()
            return await hearing

    assert asyncio.run(listen()) == []


def test_seats_are_given_back(control: ControlDatabase) -> None:
    made = ChangeFeed(control, 2, lambda *_: None)
    with made.seat(), made.seat(), pytest.raises(NotAllowed, match="2 listen already") as refused, made.seat():
        pass
    assert refused.value.status == 503
    assert made.listeners == 0


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
            save(control, "a")
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
            save(control, "a", "b")
            await collect(made, known, 2)
            save(control, "b", "c")
            await collect(made, known + 2, 2)
            while len(watched) < 3:
                await asyncio.sleep(PERIOD_S)

    asyncio.run(wait())
    assert watched == [1, 2, 4], "new ones: a, b and c, and not b again"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), min_size=1, max_size=8), st.integers(0, 40)
)
def test_no_change_is_ever_missed(control: ControlDatabase, rounds: list[list[str]], read: int) -> None:
    start = newest_change(control)
    for names in rounds:
        save(control, *names)
    known = min(start + read, newest_change(control))
    heard = changes_since(control, known, 1000)
    assert [change.number for change in heard] == sorted({change.number for change in heard})
    assert all(change.number > known for change in heard)
    last_round = {name: index for index, names in enumerate(rounds) for name in names}
    assert {change.subject for change in changes_since(control, start, 1000)} == set(last_round)
