"""Jobs that read together, and windows that are read ahead, get what each of them would get alone."""

import re
from functools import cache, partial
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

from analyzer import diagnosis
from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from analyzer.windows.jobs import list_hosts, read_roster
from lockstep.errors import StoreError
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS, WHOSE, ReadAhead, for_many, read_together, split
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from simulator.faults import parse_fault
from simulator.rows import Identity
from simulator.scenario import Scenario, build_topology, parse_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Rows, SimulatedTelemetry
from tests.builders import SECOND, T0

_MODULES = (
    "delay_matrix.clocks delay_matrix.inner delay_matrix.reading evidence.counters evidence.probe_routes "
    "evidence.reading hang.reading steps.traffic straggler.gpu_waits straggler.reading windows.jobs "
    "windows.silence"
)
_JOB = """
    summary = "8 ranks on 2 hosts"
    duration_s = 14

    [cluster]
    hosts = 2
    gpus_per_host = 4
    nics_per_host = 4
    hosts_per_leaf = 2
    spines = 2
    nic_gbps = 200.0
"""
_RINGS = parse_scenario(_JOB + "[job]\ncompute_ms = 300.0\nallreduce_mb = [64]", "rings")
_PIPELINE = parse_scenario(
    _JOB
    + '[job]\nlayout = {pp = 2, tp = 4}\nstep = [{do = "pipeline", ms = 50, backward_ms = 90, mb = 8, tp_mb = 8}]',
    "pipeline",
)
_SLOW = _RINGS.model_copy(update={"duration_s": 26, "timeline": (parse_fault("at 8 s fail nic:h1/eth2 tx to 25 %"),)})


def _statements() -> dict[str, str]:
    """Return all statements of the analyzer that can be asked for several jobs."""
    found = {}
    for name in _MODULES.split():
        for constant, text in vars(import_module(f"analyzer.{name}")).items():
            if isinstance(text, str) and ("/*" in text or text.lstrip().startswith("SELECT host")) and "FROM" in text:
                found[f"{name}.{constant}"] = text
    reading = import_module("analyzer.delay_matrix.reading")
    waits = found.pop("delay_matrix.reading._WAITS")
    return found | {f"waits of {name}": waits % {"rows": getattr(reading, name)} for name in ("_STATS", "_TRANSFERS")}


@cache
def _tell(job: str, scenario: Scenario, seconds: int) -> Rows:
    telemetry = SimulatedTelemetry(Simulation(scenario, seed=5), Identity(job, T0), heartbeats=True)
    return telemetry.advance(T0 + seconds * SECOND)


def _fill(store: Store, job: str, scenario: Scenario, seconds: int = 14) -> None:
    for name, told in _tell(job, scenario, seconds).items():
        store.insert(TABLE_BY_NAME[name], told, token=f"{job}/{name}")


def _parameters(store: Store, job: str, start_s: float, end_s: float) -> dict[str, Any]:
    roster = read_roster(store, job, 0)
    comms, ranks = roster.seats([0, 5])
    start, end = T0 + int(start_s * SECOND), T0 + int(end_s * SECOND)
    moments = {"start": start, "first": start, "fresh": start, "end": end, "last": end, "then": end, "until": end}
    moments |= {"back": start - 2 * SECOND, "turn": start + SECOND}
    lists = {"jobs": [job] * len(comms), "comms": comms.tolist(), "ranks": ranks.tolist(), "offsets": [7_000, -9_000]}
    lengths = {"before": int(start_s * SECOND / 4), "longest": SECOND, "most": 50, "since": start}
    others = {"switches": ["leaf0", "spine1"], "kinds": ["xid"], "counts": [3], "limits": [1e9]}
    return {"job": job, "attempt": 0, "hosts": sorted(roster.hosts)} | moments | lists | lengths | others


def _ask(sql: str, parameters: dict[str, Any]) -> dict[str, Any]:
    is_text = "{hosts:String}" in sql
    return parameters | ({"hosts": list_hosts(parameters["hosts"])} if is_text else {})


def _sorted(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.fixture
def jobs(embedded_store: Store) -> list[dict[str, Any]]:
    """Three jobs; two have the same hosts and numbers of communicators, and all have windows of their own."""
    for job, scenario in (("a", _RINGS), ("b", _RINGS), ("c", _PIPELINE)):
        _fill(embedded_store, job, scenario)
    windows = {"a": (4, 12), "b": (6.5, 12), "c": (2, 10)}
    return [_parameters(embedded_store, job, *window) for job, window in windows.items()]


def test_jobs_that_read_together_get_what_each_gets_alone(embedded_store: Store, jobs: list[dict[str, Any]]) -> None:
    answered = set()
    for name, sql in _statements().items():
        alone = [_sorted(embedded_store.query(sql, _ask(sql, job))) for job in jobs]
        works = [lambda store, job=job, sql=sql: store.query(sql, _ask(sql, job)) for job in jobs]
        together = [_sorted(made.result()) for made in read_together(embedded_store, works)]
        assert together == alone or _is_of_none(sql, together, alone), name
        answered |= {name} if any(alone) else set()
    assert len(answered) >= 15, sorted(_statements().keys() - answered)


def test_windows_read_at_once_get_what_each_gets_alone(embedded_store: Store, jobs: list[dict[str, Any]]) -> None:
    del jobs  # two others are there as well
    windows = [(4, 10), (5, 11), (5.5, 12), (7, 13.2)]
    asked = [_parameters(embedded_store, "a", *window) for window in windows]
    several, answered = 0, set[str]()
    for name, sql in _statements().items():
        if "/*" not in sql:
            continue
        questions = [_ask(sql, each) for each in asked]
        alone = [_sorted(embedded_store.query(sql, each)) for each in questions]
        at_once = [_sorted(rows) for rows in split(embedded_store.query(*for_many(sql, questions)), len(windows))]
        assert at_once == alone or _is_of_none(sql, at_once, alone), name
        several, answered = several + 1, answered | ({name} if any(alone) else set())
    assert several >= 22
    assert len(answered) >= 17, sorted(_statements().keys() - answered)


@pytest.mark.slow
def test_evaluations_of_a_capture_say_the_same_when_their_windows_are_read_ahead(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(embedded_store, "a", _SLOW, 26)
    asked: list[str] = []
    query = Store.query

    def count(store: Store, sql: str, parameters: Any = None) -> pa.Table:
        asked.append(sql)
        return query(store, sql, parameters)

    monkeypatch.setattr(Store, "query", count)
    topology = TopologyIndex(build_topology(_SLOW.cluster))
    ahead, statements = diagnose(embedded_store, topology, FollowOptions()), len(asked)
    monkeypatch.setattr(diagnosis, "_MOST_AHEAD", 1)
    assert ahead == diagnose(embedded_store, topology, FollowOptions())
    assert ["h1/eth2" in incident.verdict.component for incident in ahead] == [True]
    assert statements < (len(asked) - statements) / 2


def test_window_that_is_not_the_expected_one_is_read_for_itself(embedded_store: Store) -> None:
    _fill(embedded_store, "a", _RINGS)
    sql = (
        f"SELECT /*ask,*/ min(ts_ns) AS first, max(ts_ns) AS last FROM op_stats WHERE {WHOSE} "
        "AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64} /*GROUP BY ask*/"
    )
    ahead = ReadAhead(embedded_store)
    seconds = [(0, 4), (2, 6), (4, 8), (5, 8), (7, 12)]  # the fourth is not among those that were announced
    for number, (start_s, end_s) in enumerate(seconds):
        expected = [seconds[number], *(window for window in seconds[number + 1 :] if window != (5, 8))]
        ahead.move([(T0 + begin * SECOND, T0 + end * SECOND) for begin, end in expected])
        asked = {"job": "a", "attempt": 0, "start": T0 + start_s * SECOND, "end": T0 + end_s * SECOND}
        (row,) = ahead.query(sql, asked).to_pylist()
        assert row == {"first": T0 + start_s * SECOND, "last": T0 + (end_s - 1) * SECOND}


def _is_of_none(sql: str, together: list[list[str]], alone: list[list[str]]) -> bool:
    """Return whether they differ only by sums of nothing: a row for one, and none for many."""
    if "/*GROUP BY ask*/" not in sql:
        return False
    nothing = re.compile(r"\{'\w+': (0|0\.0|None|nan)\}")
    return all(
        mine == one or (not mine and nothing.fullmatch(one[0])) for mine, one in zip(together, alone, strict=True)
    )


def test_equal_questions_are_asked_once_and_each_reader_goes_on_with_its_own_answer(
    embedded_store: Store, jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = f"SELECT /*ask,*/ max(ts_ns) AS last FROM op_stats WHERE {WHOSE} AND ts_ns < {{end:Int64}} /*GROUP BY ask*/"
    asked: list[str] = []
    query = Store.query

    def count(store: Store, sql: str, parameters: dict[str, Any]) -> pa.Table:
        asked.append(sql)
        return query(store, sql, parameters)

    monkeypatch.setattr(Store, "query", count)

    def read(store: Store, job: dict[str, Any]) -> list[int]:
        last_ns = store.query(sql, job)["last"][0].as_py()
        return [last_ns, store.query(sql, job | {"end": last_ns})["last"][0].as_py()]

    made = [each.result() for each in read_together(embedded_store, [partial(read, job=job) for job in jobs])]
    assert made == [[job["end"] - SECOND, job["end"] - 2 * SECOND] for job in jobs]
    assert len(asked) == 2


def test_statement_that_the_store_refuses_fails_those_who_asked_it_and_nobody_else(embedded_store: Store) -> None:
    wrong = f"SELECT host, missing FROM agents WHERE {OF_HOSTS}"
    works = [lambda store: store.query(wrong, {"hosts": "h0"}), lambda store: store.query("SELECT 1 AS one")]
    refused, answered = read_together(embedded_store, works)
    assert isinstance(refused.exception(), StoreError)
    assert answered.result()["one"].to_pylist() == [1]
