"""An answer is asked for ahead of time: nobody waits for it who comes while it may be believed."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from api import cache
from api.cache import Refreshed, SingleFlight
from lockstep.clock import ManualClock
from lockstep.errors import ControlAway, StoreAway
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


def test_young_answer_is_not_asked_for_again() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        assert await answer.get() == 1
        clock.advance(0.4)
        assert await answer.get() == 1
        await turns()
        assert source.asked == 1

    play(scene)


def test_next_answer_is_fetched_while_the_last_is_given_to_all_who_come() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        await answer.get()
        source.gate.clear()
        clock.advance(0.6)
        assert [await answer.get() for _ in range(10)] == [1] * 10
        await turns()
        assert source.asked == 2
        source.gate.set()
        await turns()
        assert await answer.get() == 2

    play(scene)


def test_all_who_come_too_late_wait_for_one_answer() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        await answer.get()
        clock.advance(1.0)
        assert await asyncio.gather(*(answer.get() for _ in range(20))) == [2] * 20
        assert source.asked == 2

    play(scene)


def test_whoever_goes_away_takes_the_answer_from_nobody() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        source.gate.clear()
        first, second = (asyncio.create_task(answer.get()) for _ in range(2))
        await turns()
        first.cancel()
        source.gate.set()
        assert await second == 1
        assert source.asked == 1

    play(scene)


def test_answer_that_was_asked_for_before_a_change_is_not_believed() -> None:
    async def scene(answer: Refreshed[int], source: Source, clock: ManualClock) -> None:
        source.gate.clear()
        early = asyncio.create_task(answer.get())
        await turns()
        answer.forget()
        late = asyncio.create_task(answer.get())
        await turns()
        source.gate.set()
        assert (await early, await late) == (1, 2)
        assert await answer.get() == 2

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
            for _ in range(10_000):
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

    monkeypatch.setattr(cache, "Future", Told)
    return count


def ask_together(
    pool: ThreadPoolExecutor,
    flights: SingleFlight[pa.Table],
    store: SlowStore,
    waiting: threading.Semaphore,
    many: int,
) -> list[Future[pa.Table]]:
    """Let one ask, and then the others while it waits."""
    first = pool.submit(flights.ask, "a", store.query)
    assert store.began.wait(PATIENCE_S)
    others = [pool.submit(flights.ask, "a", store.query) for _ in range(many - 1)]
    for _ in others:
        assert waiting.acquire(timeout=PATIENCE_S)
    return [first, *others]


def test_many_who_ask_the_same_wait_for_one_answer(waiting: threading.Semaphore) -> None:
    flights, store = SingleFlight[pa.Table](), SlowStore()
    with ThreadPoolExecutor(8) as pool:
        asked = ask_together(pool, flights, store, waiting, 8)
        store.go.set()
        answers = [each.result(PATIENCE_S) for each in asked]
    assert [answer["number"].to_pylist() for answer in answers] == [[1]] * 8
    assert store.asked == 1


def test_who_comes_after_the_answer_asks_anew() -> None:
    flights, store = SingleFlight[pa.Table](), SlowStore()
    store.go.set()
    answers = [flights.ask("a", store.query)["number"].to_pylist() for _ in range(3)]
    assert answers == [[1], [2], [3]]


def test_other_parameters_are_another_question(waiting: threading.Semaphore) -> None:
    flights, store, other = SingleFlight[pa.Table](), SlowStore(), SlowStore()
    with ThreadPoolExecutor(2) as pool:
        (first,) = ask_together(pool, flights, store, waiting, 1)
        other.go.set()
        flights.ask("b", other.query)
        assert other.asked == 1
        store.go.set()
        first.result(PATIENCE_S)


def test_failure_is_told_to_all_who_wait_and_the_next_one_asks_again(waiting: threading.Semaphore) -> None:
    flights, store = SingleFlight[pa.Table](), SlowStore(StoreAway("it does not answer"))
    with ThreadPoolExecutor(3) as pool:
        asked = ask_together(pool, flights, store, waiting, 3)
        store.go.set()
        for each in asked:
            with pytest.raises(StoreAway, match="it does not answer"):
                each.result(PATIENCE_S)
    with pytest.raises(StoreAway):
        flights.ask("a", store.query)
    assert store.asked == 2
