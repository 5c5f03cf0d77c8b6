"""One window after another: what an evaluation asks of its window, the store is asked of the next ones as well.

Evaluations of a capture follow from each other, so they cannot read together; but nearly always the next one asks
the same, as much later as its window is. A question is taken apart into what it asks and how far its times are from
those of the window. The second time that a question comes, it is asked of some of the following windows at once, then
of more; an answer is used where exactly that is asked. After something was read in vain, it begins anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.errors import StoreError
from lockstep.store.store import Parameters, Store
from lockstep.store.together import for_many, is_for_many, names_in, split

_GROWTH = 4  # times as many windows as before; some questions change every 10 s, with what clocks of hosts tell
_MOST_BYTES = 32 << 20  # of answers to one question that are kept
_NEAR_NS = 86_400 * NS_PER_S  # a number so close to the window is a time, and else a length or a count

_Span: TypeAlias = tuple[int, int]  # start and end of a window
_ALWAYS: _Span = (0, 0)  # stands for the window of what depends on none
_Key: TypeAlias = tuple[Any, ...]  # Any: a statement, and for each parameter what it is measured from, and its value


@dataclass
class _Series:
    """A question that evaluations ask one after the other."""

    reach: int = 1  # windows that are read at once
    most: int | None = None  # of them; None: no limit is known
    answers: dict[_Span, pa.Table] = field(default_factory=dict)
    unused: set[_Span] = field(default_factory=set)
    asked_of: _Span | None = None  # the last window of which it was asked


class ReadAhead(Store):
    """A store for evaluations in the order of their windows, of rows that stay as they are."""

    def __init__(self, store: Store) -> None:
        self.address, self.database = store.address, store.database
        self._store = store
        self._windows: Sequence[_Span] = ()
        self._series: dict[_Key, _Series] = {}

    def move(self, windows: Sequence[_Span]) -> None:
        """Go on to the first of some windows; the others are those that will probably follow, as far as to read."""
        before, expected = self._windows[:1], {_ALWAYS, *windows}
        for key, series in list(self._series.items()):
            gone = series.answers.keys() - expected
            if gone & series.unused:
                series.reach = 1
            series.answers = {span: answer for span, answer in series.answers.items() if span in expected}
            series.unused &= expected
            if not series.answers and series.asked_of not in before:
                del self._series[key]
        self._windows = windows

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        now = self._windows[0]
        asked = {name: (parameters or {})[name] for name in names_in(sql)}
        key = (sql, *(_measure(value, now) for value in asked.values()))
        series = self._series.setdefault(key, _Series())
        of = now if any(edge is not None for edge, _ in key[1:]) else _ALWAYS
        if of not in series.answers:
            self._read(sql, asked, key, series, of)
        series.asked_of = now
        series.unused.discard(of)
        return series.answers[of]

    def _read(self, sql: str, asked: Parameters, key: _Key, series: _Series, of: _Span) -> None:
        """Ask of a window, or of those that follow as well."""
        is_one = of == _ALWAYS or not is_for_many(sql)
        spans = [of] if is_one else list(self._windows[: series.reach][: series.most])
        try:
            answers = self._ask(sql, [dict(zip(asked, _place(key[1:], span), strict=True)) for span in spans])
        except StoreError:  # all windows at once may take more memory than the engine has
            if len(spans) == 1:
                raise
            series.most = 1
            spans, answers = [of], self._ask(sql, [asked])
        series.answers |= zip(spans, answers, strict=True)
        series.unused |= set(spans)
        size = max(sum(answer.nbytes for answer in answers) // len(answers), 1)
        series.reach = max(min(_GROWTH * series.reach, _MOST_BYTES // size), 1)

    def _ask(self, sql: str, questions: Sequence[Parameters]) -> list[pa.Table]:
        if len(questions) == 1:
            return [self._store.query(sql, questions[0])]
        return split(self._store.query(*for_many(sql, questions)), len(questions))


def _measure(value: Any, window: _Span) -> _Key:  # Any: a parameter
    """Return what a parameter is measured from, None for what is no time, and how far it is from there."""
    if isinstance(value, list):
        return None, tuple(value)
    if not isinstance(value, int) or abs(value - window[1]) > _NEAR_NS:
        return None, value
    edge = 0 if value == window[0] else 1
    return edge, value - window[edge]


def _place(measured: Sequence[_Key], window: _Span) -> list[Any]:  # Any: parameters
    """Return the parameters as they are for a window."""
    return [
        (list(value) if isinstance(value, tuple) else value) if edge is None else window[edge] + value
        for edge, value in measured
    ]
