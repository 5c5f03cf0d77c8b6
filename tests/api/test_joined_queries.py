"""The same question of many at once is asked once; another question, or one after the answer, is asked for itself."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from api import joined_queries
from api.joined_queries import JoinedQueries
from lockstep.errors import StoreAway

SQL = "SELECT 1"
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
    """Counts who has joined a question and waits for its answer."""
    count = threading.Semaphore(0)

    class Told(Future[pa.Table]):
        def result(self, timeout: float | None = None) -> pa.Table:
            count.release()
            return super().result(timeout)

    monkeypatch.setattr(joined_queries, "Future", Told)
    return count


def ask_together(
    pool: ThreadPoolExecutor, joined: JoinedQueries, store: SlowStore, waiting: threading.Semaphore, many: int
) -> list[Future[pa.Table]]:
    """Let one ask, and then the others while it waits."""
    first = pool.submit(joined.ask, store.query, SQL, {"job": "a"})
    assert store.began.wait(PATIENCE_S)
    others = [pool.submit(joined.ask, store.query, SQL, {"job": "a"}) for _ in range(many - 1)]
    for _ in others:
        assert waiting.acquire(timeout=PATIENCE_S)
    return [first, *others]


def test_many_who_ask_the_same_wait_for_one_answer(waiting: threading.Semaphore) -> None:
    joined, store = JoinedQueries(), SlowStore()
    with ThreadPoolExecutor(8) as pool:
        asked = ask_together(pool, joined, store, waiting, 8)
        store.go.set()
        answers = [each.result(PATIENCE_S) for each in asked]
    assert [answer["number"].to_pylist() for answer in answers] == [[1]] * 8
    assert store.asked == 1


def test_who_comes_after_the_answer_asks_anew() -> None:
    joined, store = JoinedQueries(), SlowStore()
    store.go.set()
    answers = [joined.ask(store.query, SQL, {"job": "a"})["number"].to_pylist() for _ in range(3)]
    assert answers == [[1], [2], [3]]


def test_other_parameters_are_another_question(waiting: threading.Semaphore) -> None:
    joined, store, other = JoinedQueries(), SlowStore(), SlowStore()
    with ThreadPoolExecutor(2) as pool:
        (first,) = ask_together(pool, joined, store, waiting, 1)
        other.go.set()
        joined.ask(other.query, SQL, {"job": "b"})
        assert other.asked == 1
        store.go.set()
        first.result(PATIENCE_S)


def test_failure_is_told_to_all_who_wait_and_the_next_one_asks_again(waiting: threading.Semaphore) -> None:
    joined, store = JoinedQueries(), SlowStore(StoreAway("it does not answer"))
    with ThreadPoolExecutor(3) as pool:
        asked = ask_together(pool, joined, store, waiting, 3)
        store.go.set()
        for each in asked:
            with pytest.raises(StoreAway, match="it does not answer"):
                each.result(PATIENCE_S)
    with pytest.raises(StoreAway):
        joined.ask(store.query, SQL, {"job": "a"})
    assert store.asked == 2
