"""Whoever asks the store what another request is asking already waits for that answer instead of asking again.

Fifty people who look at the same page would have the store find the same rows fifty times over. Nothing is kept: who
comes after the answer asks anew. It needs questions that are equal, so requests ask about whole seconds
(`Parts.second_ns`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa

from lockstep.store.store import Parameters

_Question = tuple[str, str]  # SQL, and its parameters as text


class JoinedQueries:
    """The questions that are being answered; safe to share between threads. What they share are immutable rows."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._asked: dict[_Question, Future[pa.Table]] = {}

    def ask(self, query: Callable[[], pa.Table], sql: str, parameters: Parameters | None) -> pa.Table:
        """Return the answer of `query`, or what comes of the same question of somebody else; also its failure."""
        question = (sql, repr(sorted((parameters or {}).items())))
        with self._guard:
            theirs = self._asked.get(question)
            answer = self._asked.setdefault(question, Future())
        if theirs is None:
            self._answer(question, answer, query)
        return answer.result()

    def _answer(self, question: _Question, answer: Future[pa.Table], query: Callable[[], pa.Table]) -> None:
        try:
            rows = query()
        except BaseException as error:
            self._forget(question)
            answer.set_exception(error)
            raise
        self._forget(question)  # before it is told: who comes later does not get it
        answer.set_result(rows)

    def _forget(self, question: _Question) -> None:
        with self._guard:
            del self._asked[question]
