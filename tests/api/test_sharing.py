"""An answer is asked for ahead of time and once for all who come; what the control database says is obeyed soon."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from api import auth as cache_module
from api import sharing
from api.auth import LIFE_S, TokenCache
from api.sharing import Refreshed, SingleFlight
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import ControlAway, StoreAway
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import add_detail_requests
from lockstep.state.tokens import Scope, Token, create_token, list_tokens, revoke_token
from tests.builders import T0


class Source:
    """Gives 1, 2, 3 and so on, each as soon as it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.trouble: Exception | None = None

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        return number


def play(scene: Callable[[Refreshed[int], Source, ManualClock], object]) -> None:
    """Run a scene with an answer that is believed for a second and asked for again after half of it."""

    async def run() -> None:
        clock, source = ManualClock(T0), Source()
        answer = Refreshed(source, clock, again_s=0.5, believed_s=1.0)
        source.gate.set()
        await scene(answer, source, clock)  # type: ignore[misc]

    asyncio.run(run())


async def turns() -> None:
    """Let everybody else do what they can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_next_answer_is_fetched_while_the_last_is_given_and_who_comes_too_late_waits() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        await answer.get()
        clock.advance(0.4)
        assert await answer.get() == 1
        await turns()
        assert source.asked == 1, "it is young"
        source.gate.clear()
        clock.advance(0.2)
        assert [await answer.get() for _ in range(10)] == [1] * 10
        await turns()
        assert source.asked == 2
        source.gate.set()
        await turns()
        assert await answer.get() == 2
        clock.advance(1.0)
        assert await asyncio.gather(*(answer.get() for _ in range(20))) == [3] * 20
        assert source.asked == 3

    play(scene)


def test_who_goes_away_takes_the_answer_from_nobody_and_one_from_before_a_change_is_not_believed() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        source.gate.clear()
        first, early = (asyncio.create_task(answer.get()) for _ in range(2))
        await turns()
        first.cancel()
        answer.forget()
        late = asyncio.create_task(answer.get())
        await turns()
        source.gate.set()
        assert (await early, await late) == (1, 2)
        assert await answer.get() == source.asked == 2

    play(scene)


def test_trouble_is_told_to_who_waits_and_the_last_answer_holds_for_its_time() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        await answer.get()
        source.trouble = ControlAway("the control database cannot be used")
        clock.advance(0.6)
        assert await answer.get() == 1
        await turns()
        clock.advance(0.4)
        with pytest.raises(ControlAway):
            await answer.get()
        source.trouble = None
        assert await answer.get() == source.asked

    play(scene)


def test_another_thread_may_forget_at_any_moment() -> None:
    """Bytecode by bytecode: a reader between two looks at what is being asked finds it gone."""
    switching_s = sys.getswitchinterval()
    stop = threading.Event()

    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        def forget_always() -> None:
            while not stop.is_set():
                answer.forget()

        thread = threading.Thread(target=forget_always)
        thread.start()
        try:
            for _ in range(2_000):
                clock.advance(2.0)
                assert await answer.get() <= source.asked
        finally:
            stop.set()
            thread.join()

    sys.setswitchinterval(1e-6)
    try:
        play(scene)
    finally:
        sys.setswitchinterval(switching_s)


PATIENCE_S = 60
Flights = SingleFlight[pa.Table]


class SlowStore:
    """A store that answers when it is let go, and counts who asked it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self.began, self.go = threading.Event(), threading.Event()
        self._error = error

    def query(self) -> pa.Table:
        self.asked += 1
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return pa.table({"number": [self.asked]})


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts who has flights a question and waits for its answer."""
    count = threading.Semaphore(0)

    class Told(Future[pa.Table]):
        def result(self, timeout: float | None = None) -> pa.Table:
            count.release()
            return super().result(timeout)

    monkeypatch.setattr(sharing, "Future", Told)
    return count


def ask_together(
    pool: ThreadPoolExecutor, flights: Flights, store: SlowStore, waiting: threading.Semaphore, many: int
) -> list[Future[pa.Table]]:
    """Let one ask, and then the others while it waits."""
    first = pool.submit(flights.ask, "a", store.query)
    assert store.began.wait(PATIENCE_S)
    others = [pool.submit(flights.ask, "a", store.query) for _ in range(many - 1)]
    for _ in others:
        assert waiting.acquire(timeout=PATIENCE_S)
    return [first, *others]


def test_many_who_ask_the_same_wait_for_one_answer(waiting: threading.Semaphore) -> None:
    flights, store = Flights(), SlowStore()
    with ThreadPoolExecutor(8) as pool:
        asked = ask_together(pool, flights, store, waiting, 8)
        store.go.set()
        assert [each.result(PATIENCE_S)["number"].to_pylist() for each in asked] == [[1]] * 8
    assert store.asked == 1


def test_who_asks_something_else_or_after_the_answer_asks_anew(waiting: threading.Semaphore) -> None:
    flights, store = Flights(), SlowStore()
    store.go.set()
    assert [flights.ask("a", store.query)["number"].to_pylist() for _ in range(3)] == [[1], [2], [3]]
    flights, store, other = Flights(), SlowStore(), SlowStore()
    with ThreadPoolExecutor(2) as pool:
        (first,) = ask_together(pool, flights, store, waiting, 1)
        other.go.set()
        flights.ask("b", other.query)
        assert other.asked == 1
        store.go.set()
        first.result(PATIENCE_S)


def test_failure_is_told_to_all_who_wait_and_the_next_one_asks_again(waiting: threading.Semaphore) -> None:
    flights, store = Flights(), SlowStore(StoreAway("it does not answer"))
    with ThreadPoolExecutor(3) as pool:
        asked = ask_together(pool, flights, store, waiting, 3)
        store.go.set()
        for each in asked:
            with pytest.raises(StoreAway, match="it does not answer"):
                each.result(PATIENCE_S)
    with pytest.raises(StoreAway):
        flights.ask("a", store.query)
    assert store.asked == 2


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000 * NS_PER_S)


@pytest.fixture
def token_cache(control: ControlDatabase, clock: ManualClock) -> TokenCache:
    return TokenCache(control, clock)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    questions: list[str] = []
    for name in ("valid_tokens", "find_token", "detail_requests_by_host"):
        plain = getattr(cache_module, name)

        def ask(*arguments: object, name: str = name, plain: Callable[..., object] = plain) -> object:
            questions.append(name)
            return plain(*arguments)

        monkeypatch.setattr(cache_module, name, ask)
    return questions


def make_token(control: ControlDatabase, host: str, scope: Scope = "ingest") -> str:
    return create_token(control, scope=scope, host=host, name="test", now_ns=1)


def find(token_cache: TokenCache, secret: str) -> Token | None:
    return asyncio.run(token_cache.find_token(secret))


def detail_requests(token_cache: TokenCache, host: str) -> list[str]:
    return [detail_request.id for detail_request in asyncio.run(token_cache.detail_requests_for(host))]


def detail_request(name: str, host: str, expires_s: float) -> DetailRequest:
    return DetailRequest(id=name, host=host, kind="probe", details={}, expires_ns=round(expires_s * NS_PER_S))


def test_a_revoked_token_is_refused_as_soon_as_the_answer_is_old_and_at_once_where_it_was_revoked(
    token_cache: TokenCache, control: ControlDatabase, clock: ManualClock
) -> None:
    assert LIFE_S <= 1.0, "docs/operations.md promises it to whoever revokes a token"
    agent, reader = make_token(control, "h0"), make_token(control, "h1", "read")
    known, found = find(token_cache, agent), find(token_cache, reader)
    assert known is not None
    assert found is not None
    assert (known.host, known.scope, found.scope) == ("h0", "ingest", "read")
    revoke_token(control, known.id, now_ns=5)
    clock.advance(LIFE_S)
    assert find(token_cache, agent) is None
    revoke_token(control, found.id, now_ns=5)
    assert find(token_cache, reader) == found
    token_cache.forget()
    assert find(token_cache, reader) is None


def test_tokens_are_looked_up_once_for_all_who_come_while_the_answer_is_young(
    token_cache: TokenCache, control: ControlDatabase, clock: ManualClock, asked: list[str]
) -> None:
    secrets = [make_token(control, f"h{number}") for number in range(30)]

    async def all_at_once() -> list[Token | None]:
        return await asyncio.gather(*(token_cache.find_token(secret) for secret in secrets))

    for _ in range(3):
        found = asyncio.run(all_at_once())
        assert [token.host for token in found if token] == [f"h{number}" for number in range(30)]
        assert detail_requests(token_cache, "h0") == []
        clock.advance(LIFE_S / 8)
    assert asked == ["valid_tokens", "detail_requests_by_host"]
    clock.advance(LIFE_S)
    assert find(token_cache, secrets[0]) is not None
    assert asked == ["valid_tokens", "detail_requests_by_host"] * 2


def test_what_is_no_token_is_none_and_a_token_newer_than_the_answer_is_found_at_once(
    token_cache: TokenCache, control: ControlDatabase, asked: list[str]
) -> None:
    secret = make_token(control, "h0")
    (token,) = list_tokens(control)
    assert find(token_cache, secret) == token
    unknown = "lks_" + "0" * 16 + "_" + "A" * 43
    assert asyncio.run(token_cache.find_known(unknown)) is None
    assert "find_token" not in asked
    for none in ("", "nothing", unknown, secret[:-43] + "A" * 43):
        assert find(token_cache, none) is None
    newer = find(token_cache, make_token(control, "h1"))
    assert newer is not None
    assert newer.host == "h1"


def test_a_detail_request_reaches_its_host_as_soon_as_the_answer_is_old_and_not_once_it_has_expired(
    token_cache: TokenCache, control: ControlDatabase, clock: ManualClock
) -> None:
    assert detail_requests(token_cache, "h0") == []
    add_detail_requests(control, detail_request("late", "h0", 3_000))
    add_detail_requests(control, detail_request("soon", "h0", 2_000))
    add_detail_requests(control, detail_request("other", "h1", 2_000))
    clock.advance(LIFE_S)
    assert detail_requests(token_cache, "h0") == ["soon", "late"]
    assert detail_requests(token_cache, "h1") == ["other"]
    now_s = clock.now_ns() / NS_PER_S
    add_detail_requests(control, detail_request("short", "h2", now_s + LIFE_S * 3 / 2))
    clock.advance(LIFE_S)
    assert detail_requests(token_cache, "h2") == ["short"]
    clock.advance(LIFE_S * 3 / 4)
    assert detail_requests(token_cache, "h2") == [], "it expired while the answer was young"


def test_nobody_is_let_in_on_an_old_answer_while_the_database_is_away(
    token_cache: TokenCache, control: ControlDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_token(control, "h0")
    assert find(token_cache, secret) is not None

    def away(_: ControlDatabase) -> None:
        raise ControlAway("the control database cannot be used")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "valid_tokens", away)
        clock.advance(LIFE_S)
        with pytest.raises(ControlAway):
            find(token_cache, secret)
    assert find(token_cache, secret) is not None
