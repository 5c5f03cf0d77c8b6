"""An answer is asked for ahead of time and once for all who come; what the control database says is obeyed soon."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from api import auth, sharing
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


Scene = Callable[[Refreshed[int], Source, ManualClock], Coroutine[object, object, None]]


def played(scene: Scene) -> Callable[[], None]:
    """Make a test of a scene with an answer that is believed for a second and asked for again after half of it."""

    async def play() -> None:
        clock, source = ManualClock(T0), Source()
        source.gate.set()
        await scene(Refreshed(source, clock, again_s=0.5, believed_s=1.0), source, clock)

    return lambda: asyncio.run(play())


async def turns() -> None:
    """Let everybody else do what they can."""
    for _ in range(5):
        await asyncio.sleep(0)


@played
async def test_next_answer_is_fetched_while_the_last_is_given_and_who_comes_too_late_waits(
    answer: Refreshed[int], source: Source, clock: ManualClock
) -> None:
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


@played
async def test_who_goes_away_takes_the_answer_from_nobody_and_one_from_before_a_change_is_not_believed(
    answer: Refreshed[int], source: Source, clock: ManualClock
) -> None:
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


@played
async def test_trouble_is_told_to_who_waits_and_the_last_answer_holds_for_its_time(
    answer: Refreshed[int], source: Source, clock: ManualClock
) -> None:
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


@played
async def test_another_thread_may_forget_at_any_moment(
    answer: Refreshed[int], source: Source, clock: ManualClock
) -> None:
    """Bytecode by bytecode: a reader between two looks at what is being asked finds it gone."""
    switching_s, stop = sys.getswitchinterval(), threading.Event()

    def forget_always() -> None:
        while not stop.is_set():
            answer.forget()

    thread = threading.Thread(target=forget_always)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(2_000):
            clock.advance(2.0)
            assert await answer.get() <= source.asked
    finally:
        stop.set()
        thread.join()
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


class Cache:
    """A token cache over a real control database, with a clock of its own, whose questions are written down."""

    def __init__(self, control: ControlDatabase, patch: pytest.MonkeyPatch) -> None:
        self.control, self.clock = control, ManualClock(1_000 * NS_PER_S)
        self.cache, self.asked = TokenCache(control, self.clock), list[str]()
        for name in ("valid_tokens", "find_token", "detail_requests_by_host"):
            patch.setattr(auth, name, self._noted(name, getattr(auth, name)))

    def _noted(self, name: str, plain: Callable[..., object]) -> Callable[..., object]:
        def ask(*arguments: object) -> object:
            self.asked.append(name)
            return plain(*arguments)

        return ask

    def make_token(self, host: str, scope: Scope = "ingest") -> str:
        return create_token(self.control, scope=scope, host=host, name="test", now_ns=1)

    def find(self, secret: str) -> Token | None:
        return asyncio.run(self.cache.find_token(secret))

    def request(self, name: str, host: str, expires_s: float) -> None:
        expires_ns = round(expires_s * NS_PER_S)
        asked = DetailRequest(id=name, host=host, kind="probe", details={}, expires_ns=expires_ns)
        add_detail_requests(self.control, asked)

    def requests_for(self, host: str) -> list[str]:
        return [each.id for each in asyncio.run(self.cache.detail_requests_for(host))]


@pytest.fixture
def cache(control: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(control, monkeypatch)


def test_a_revoked_token_is_refused_as_soon_as_the_answer_is_old_and_at_once_where_it_was_revoked(
    cache: Cache,
) -> None:
    assert LIFE_S <= 1.0, "docs/operations.md promises it to whoever revokes a token"
    agent, reader = cache.make_token("h0"), cache.make_token("h1", "read")
    known, found = cache.find(agent), cache.find(reader)
    assert known is not None
    assert found is not None
    assert (known.host, known.scope, found.scope) == ("h0", "ingest", "read")
    revoke_token(cache.control, known.id, now_ns=5)
    cache.clock.advance(LIFE_S)
    assert cache.find(agent) is None
    revoke_token(cache.control, found.id, now_ns=5)
    assert cache.find(reader) == found
    cache.cache.forget()
    assert cache.find(reader) is None


def test_tokens_are_looked_up_once_for_all_who_come_while_the_answer_is_young(cache: Cache) -> None:
    hosts = [f"h{number}" for number in range(30)]
    secrets = [cache.make_token(host) for host in hosts]

    async def all_at_once() -> list[Token | None]:
        return await asyncio.gather(*(cache.cache.find_token(secret) for secret in secrets))

    for _ in range(3):
        assert [token.host for token in asyncio.run(all_at_once()) if token] == hosts
        assert cache.requests_for("h0") == []
        cache.clock.advance(LIFE_S / 8)
    assert cache.asked == ["valid_tokens", "detail_requests_by_host"]
    cache.clock.advance(LIFE_S)
    assert cache.find(secrets[0]) is not None
    assert cache.asked == ["valid_tokens", "detail_requests_by_host"] * 2


def test_what_is_no_token_is_none_and_a_token_newer_than_the_answer_is_found_at_once(cache: Cache) -> None:
    secret = cache.make_token("h0")
    (token,) = list_tokens(cache.control)
    assert cache.find(secret) == token
    unknown = "lks_" + "0" * 16 + "_" + "A" * 43
    assert asyncio.run(cache.cache.find_known(unknown)) is None
    assert "find_token" not in cache.asked
    assert [cache.find(none) for none in ("", "nothing", unknown, secret[:-43] + "A" * 43)] == [None] * 4
    newer = cache.find(cache.make_token("h1"))
    assert newer is not None
    assert newer.host == "h1"


def test_a_detail_request_reaches_its_host_soon_and_not_once_it_has_expired(cache: Cache) -> None:
    assert cache.requests_for("h0") == []
    for name, host, expires_s in (("late", "h0", 3_000), ("soon", "h0", 2_000), ("other", "h1", 2_000)):
        cache.request(name, host, expires_s)
    cache.clock.advance(LIFE_S)
    assert (cache.requests_for("h0"), cache.requests_for("h1")) == (["soon", "late"], ["other"])
    cache.request("short", "h2", cache.clock.now_ns() / NS_PER_S + LIFE_S * 3 / 2)
    cache.clock.advance(LIFE_S)
    assert cache.requests_for("h2") == ["short"]
    cache.clock.advance(LIFE_S * 3 / 4)
    assert cache.requests_for("h2") == [], "it expired while the answer was young"


def test_nobody_is_let_in_on_an_old_answer_while_the_database_is_away(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: ControlDatabase) -> None:
        raise ControlAway("the control database cannot be used")

    secret = cache.make_token("h0")
    assert cache.find(secret) is not None
    with monkeypatch.context() as patch:
        patch.setattr(auth, "valid_tokens", away)
        cache.clock.advance(LIFE_S)
        with pytest.raises(ControlAway):
            cache.find(secret)
    assert cache.find(secret) is not None
