"""An answer is asked for ahead of time: nobody waits for it who comes while it may be believed."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from api.refreshed import Refreshed
from lockstep.clock import ManualClock
from lockstep.errors import ControlAway
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
