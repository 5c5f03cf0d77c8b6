"""Several readers side by side: what they ask alike, the store is asked once for all of them.

The embedded engine takes 5 to 40 ms to plan a statement, however few rows it is about, so ten jobs that each ask the
same twenty questions would keep a core busy with planning alone. Readers run in threads, one at a time: each goes on
until it asks something, and when all of them wait, equal statements are put together.

A statement can be put together when it says where the number of the reader goes: what stands in `/*` `*/` is part of
it for many and a comment for one, and each part that reads rows of a job names them by `WHOSE`. Parameters in which
readers differ become arrays, lists are joined, and the answer is taken apart by its first column. Statements about
hosts (`OF_HOSTS`) that differ in nothing else are put together as well, and taken apart by the hosts.

A job that reads several windows is several readers, too: then a row belongs to each of them whose window it is in.

Evaluations of a capture follow from each other, so they cannot read together; but nearly always the next one asks
the same, as much later as its window is. A question is taken apart into what it asks and how far its times are from
those of the window. The second time that a question comes, it is asked of some of the following windows at once, then
of more; an answer is used where exactly that is asked. After something was read in vain, it begins anew.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, pairwise
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.errors import LockstepError, StoreAway, StoreError
from lockstep.store.store import Parameters, Store

WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
OF_HOSTS = r"host IN (SELECT arrayJoin(splitByChar('\n', {hosts:String})))"  # no host has a line break in its name
_WHOSE_OF_MANY = (
    "job IN {job:Array(String)} AND (indexOf({job:Array(String)}, job) AS ask) > 0 AND attempt = {attempt:UInt16}"
)
_EACH_WINDOW = "arrayJoin({asks:Array(UInt32)}) AS ask"
_FOR_MANY = re.compile(r"/\*(.*?)\*/")
_PARAMETER = re.compile(r"\{(\w+):(\w+(?:\(\w+\))?)\}")
# Rows are found by their time in the index, for which the bound has to be a constant.
_BOUND = re.compile(r"([\w.]+) (>=|<) (\{(\w+):Int64\}(?: - (?:\d+|\{\w+:Int64\}))?)(?! - )")
_MOST_AT_ONCE = 64  # readers: bounds threads, and what is in memory

# Of windows that are read ahead.
_GROWTH = 4  # times as many windows as before; some questions change every 10 s, with what clocks of hosts tell
_MOST_BYTES = 32 << 20  # of answers to one question that are kept
_NEAR_NS = 86_400 * NS_PER_S  # a number so close to the window is a time, and else a length or a count

Made = TypeVar("Made")
_Answer: TypeAlias = "pa.Table | BaseException"


@dataclass(frozen=True)
class _Question:
    sql: str
    parameters: Parameters


class _Reader(Store):
    """A store whose questions go to whoever runs all readers."""

    def __init__(self, store: Store, said: "SimpleQueue[_Question | None]", is_over: Callable[[], bool]) -> None:
        self.address, self.database = store.address, store.database
        self._said, self._is_over = said, is_over
        self._answers: SimpleQueue[_Answer] = SimpleQueue()

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        if self._is_over():
            raise LockstepError("nobody waits for the answer any more")
        self._said.put(_Question(sql, parameters or {}))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, work: Callable[[Store], Made]) -> Made:
        try:
            return work(self)
        finally:
            self._said.put(None)

    def resume(self, answer: _Answer) -> _Question | None:
        """Go on with an answer; returns what is asked next, None at the end."""
        self._answers.put(answer)
        return self._said.get()


def read_together(
    store: Store, works: Sequence[Callable[[Store], Made]], is_over: Callable[[], bool] = lambda: False
) -> "list[Future[Made]]":
    """Return what each of some works returns, or raises, that only read from the store they are given.

    Once it is over, those that ask the store for more end with an error.
    """
    groups = (works[first : first + _MOST_AT_ONCE] for first in range(0, len(works), _MOST_AT_ONCE))
    return [made for group in groups for made in _read_group(store, group, is_over)]


def _read_group(
    store: Store, works: Sequence[Callable[[Store], Made]], is_over: Callable[[], bool]
) -> "list[Future[Made]]":
    said: SimpleQueue[_Question | None] = SimpleQueue()
    readers = [_Reader(store, said, is_over) for _ in works]
    asked: dict[int, _Question] = {}
    with ThreadPoolExecutor(len(works), "reader") as pool:
        made = []
        for number, (reader, work) in enumerate(zip(readers, works, strict=True)):
            made.append(pool.submit(reader.run, work))
            if first := said.get():
                asked[number] = first
        while asked:
            answers = _answer(store, asked)
            resumed = {number: readers[number].resume(answer) for number, answer in answers.items()}
            asked = {number: question for number, question in resumed.items() if question}
    return made


def _answer(store: Store, asked: Mapping[int, _Question]) -> dict[int, _Answer]:
    """Return an answer, or why there is none, for each reader."""
    answers: dict[int, _Answer] = {}
    for numbers in _group(asked):
        answers |= _answer_group(store, {number: asked[number] for number in numbers})
    return answers


def _answer_group(store: Store, asked: Mapping[int, _Question]) -> dict[int, _Answer]:
    """Return the answers to what can be asked together; each is asked alone where one of them spoils it."""
    try:
        return dict(zip(asked, _ask(store, list(asked.values())), strict=True))
    except BaseException as error:  # noqa: BLE001  # else readers would wait for ever; each of them raises it
        if len(asked) == 1 or isinstance(error, StoreAway):
            return dict.fromkeys(asked, error)
    return {number: _answer_group(store, {number: asked[number]})[number] for number in asked}


def _group(asked: Mapping[int, _Question]) -> list[list[int]]:
    """Return the readers whose questions can be put together; of two attempts of a job each is in another group."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, question in asked.items():
        parameters = question.parameters
        if WHOSE in question.sql and is_for_many(question.sql):
            key: tuple[Any, ...] = (question.sql, parameters.get("attempt"))
        elif (
            OF_HOSTS in question.sql
            and _FOR_MANY.sub("", question.sql).split(",")[0].split()[:2] == ["SELECT", "host"]
            and "{job:" not in question.sql
        ):
            key = (question.sql, *((name, parameters[name]) for name in names_in(question.sql) if name != "hosts"))
        else:
            key = (question.sql, number)
        groups[key].append(number)
    return list(groups.values())


def _ask(store: Store, questions: Sequence[_Question]) -> Iterable[pa.Table]:
    sql, parameters = questions[0].sql, [question.parameters for question in questions]
    if len(questions) == 1:
        return [store.query(sql, parameters[0])]
    if WHOSE in sql:
        return split(store.query(*for_many(sql, parameters)), len(questions))
    hosts = [each["hosts"].split("\n") for each in parameters]
    rows = store.query(sql, {**parameters[0], "hosts": "\n".join(sorted(set().union(*hosts)))})
    return [rows.filter(pc.is_in(rows.column(0), pa.array(each, rows.schema.types[0]))) for each in hosts]


def is_for_many(sql: str) -> bool:
    """Return whether a statement says where the number of the reader goes."""
    return bool(_FOR_MANY.search(sql))


def names_in(sql: str) -> list[str]:
    """Return the parameters of a statement."""
    return sorted({name for name, _ in _PARAMETER.findall(sql)})


def for_many(sql: str, parameters: Sequence[Parameters]) -> tuple[str, dict[str, Any]]:
    """Return a statement for all of some readers, whose rows begin with the number of the reader, from 1 on.

    They are jobs, or windows of one job.

    >>> one = f"SELECT /*ask,*/ max(n) FROM op_stats WHERE {WHOSE} AND ts_ns >= {{start:Int64}} /*GROUP BY ask*/"
    >>> sql, asked = for_many(one, [{"job": "a", "attempt": 1, "start": 5}, {"job": "b", "attempt": 1, "start": 7}])
    >>> sql[sql.index("AND ts_ns"):]
    'AND ts_ns >= {start:Array(Int64)}[ask] AND ts_ns >= {outer_start:Int64} GROUP BY ask'
    >>> asked["start"], asked["outer_start"]
    ([5, 7], 5)
    """
    values = {name: [each[name] for each in parameters] for name in names_in(sql)}
    lists = {name for name, each in values.items() if isinstance(each[0], list)}
    apart = {name for name, each in values.items() if any(value != each[0] for value in each)} - lists
    asked = {name: each if name in apart else each[0] for name, each in values.items()}
    if "job" in apart:
        asked |= {name: list(chain.from_iterable(values[name])) for name in lists}
    else:
        asked["asks"] = list(range(1, len(parameters) + 1))
    many = _BOUND.sub(lambda found: _bound(found, apart, values, asked), _number_rows(sql, "job" in apart))

    def as_array(found: re.Match[str]) -> str:
        name, kind = found.groups()
        return f"{{{name}:Array({kind})}}[ask]" if name in apart and "(" not in kind else found.group()

    return _PARAMETER.sub(as_array, many), asked


def _number_rows(sql: str, are_jobs: bool) -> str:
    """Return a statement in which each row has the number of its reader, or comes once for each of several."""
    if WHOSE not in sql:
        sql = sql.replace("/*ask,*/", f"{_EACH_WINDOW},", 1)
    many = _FOR_MANY.sub(r"\1", sql)
    return many.replace(WHOSE, _WHOSE_OF_MANY if are_jobs else f"{WHOSE} AND ({_EACH_WINDOW}) > 0")


def _bound(found: "re.Match[str]", apart: set[str], values: Mapping[str, list[Any]], asked: dict[str, Any]) -> str:
    """Return a comparison with a time, and one with the earliest or latest of all readers beside it."""
    column, sign, bound, name = found.groups()
    less = next((each for each, _ in _PARAMETER.findall(bound) if each != name), None)
    if name not in apart and less not in apart:
        return found.group()
    times = [time - (values[less][number] if less else 0) for number, time in enumerate(values[name])]
    outer = "_".join(["outer" if sign == ">=" else "outer_end", name, *([less] if less else [])])
    asked[outer] = min(times) if sign == ">=" else max(times)
    constant = bound[bound.index("}") + 1 :] if not less else ""
    return f"{column} {sign} {bound} AND {column} {sign} {{{outer}:Int64}}{constant}"


def split(rows: pa.Table, readers: int) -> list[pa.Table]:
    """Return the rows of each reader, without the column of its number."""
    number = np.asarray(rows.column(0).combine_chunks()).astype(np.int64)
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(1, readers + 2))
    rest = rows.drop_columns([rows.column_names[0]]).take(pa.array(order))
    return [rest.slice(begin, end - begin) for begin, end in pairwise(bounds.tolist())]


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
