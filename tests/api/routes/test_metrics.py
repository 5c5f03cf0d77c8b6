"""What Prometheus reads: named as it asks for, bounded in number, and gone when a job is."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api.routes import health
from api.routes.health import ENDED_S, FRESH_S, SystemMetrics
from lockstep import __version__
from lockstep.alerts import AlertSettings
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.config import Settings
from lockstep.errors import ControlAway
from lockstep.execution import Execution
from lockstep.execution import Step as Act
from lockstep.records import Step
from lockstep.sections import ApiSettings
from lockstep.state.decisions import save_decisions
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.incidents import Analysis, Change, note_analysis, note_jobs, save_incidents
from lockstep.store.store import Store
from lockstep.verdict import Incident
from tests.api.alerts.build import make_notification, target
from tests.api.build import Api, check_problem, running_api
from tests.api.fake_store import AwayStore, FakeStore
from tests.api.views.build import put
from tests.builders import T0
from tests.lockstep.state.build import decision, incident
from tests.waiting import HastyClock, eventually

Series = dict[tuple[str, str], float]  # by name and the values of the labels


def read(text: str) -> Series:
    return {
        (sample.name, ",".join(value for name, value in sorted(sample.labels.items()) if name != "le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def scrape(api: Api) -> Series:
    return read(api.get("/metrics").text)


def series_of(metrics: SystemMetrics) -> Series:
    return read(generate_latest(metrics.registry).decode())


class NoJobs(FakeStore):
    def query(self, sql: str, parameters: Mapping[str, object] | None = None) -> pa.Table:
        return pa.table({})


@pytest.fixture
def api(tmp_path: Path, shared_store: Store) -> Iterator[Api]:
    with running_api(tmp_path, shared_store, settings=Settings(api=ApiSettings(metrics_jobs=3))) as running:
        yield running


@pytest.fixture
def metrics(api: Api) -> SystemMetrics:
    return SystemMetrics(api.parts)


def told(thing: Incident, number: int = 1, first: int = 1) -> Change:
    return Change(number, first, "incident", thing.id, thing.model_dump_json(by_alias=True))


def ended(decision_id: str, state: str = "done", isolated: str = "done") -> Change:
    isolate = Act.model_validate({"act": "isolate", "subject": "h3", "state": isolated, "ended_ns": 40 * NS_PER_S})
    run = Execution.model_validate(
        {"decision": decision_id, "incident": "i1", "job": "train", "action": "replace", "component": "nic:h3/eth1"}
        | {"state": state, "generation": 1, "approved_by": "ann", "began_ns": 5, "steps": [isolate]}
        | {"ended_ns": None if state == "executing" else 50 * NS_PER_S}
    )
    return Change(9, 9, "execution", decision_id, run.model_dump_json())


def test_open_incidents_are_counted_by_class_and_by_job(metrics: SystemMetrics, api: Api) -> None:
    assert series_of(metrics)["lockstep_build_info", __version__] == 1
    counted = [count for (name, _), count in series_of(metrics).items() if name == "lockstep_deliveries_total"]
    assert counted == [0] * 15
    known = [incident("a"), incident("b"), incident("c", job="other"), incident("d", state="closed")]
    save_incidents(api.parts.control, known, None)
    series = series_of(SystemMetrics(api.parts))  # another has just read, and keeps what it read for a while
    assert series["lockstep_incidents_open", "comm_slow"] == 3
    assert (series["lockstep_job_incidents", "train"], series["lockstep_job_incidents", "other"]) == (2, 1)


def test_analysis_that_is_behind_says_so_in_metrics_in_the_api_and_on_pages(api: Api) -> None:
    assert api.get("/readyz").json() == {"ready": True}
    assert "lockstep_analysis_behind_seconds" not in {name for name, _ in series_of(SystemMetrics(api.parts))}
    for behind_s, is_said in ((3, False), (42, True)):
        note_analysis(api.parts.control, Analysis(api.parts.clock.now_ns() - behind_s * NS_PER_S, skipped=7))
        note_jobs(api.parts.control, {"train": api.parts.clock.now_ns() - (behind_s + 5) * NS_PER_S})
        series = series_of(SystemMetrics(api.parts))
        assert series["lockstep_job_analysis_behind_seconds", "train"] == pytest.approx(behind_s + 5, abs=2)
        assert series["lockstep_analysis_behind_seconds", ""] == pytest.approx(behind_s, abs=2)
        assert series["lockstep_analysis_skipped", ""] == 7
        assert ("analysis" in api.get("/readyz").json()) is is_said
        assert bool(re.search("analysis 4. s behind", api.get("/").text)) is is_said
        listed = api.get("/api/v1/incidents", {"limit": behind_s})  # one page each: they are kept for a second
        said = listed.headers.get("Lockstep-Analysis", "")
        assert bool(re.fullmatch("analysis 4. s behind", said)) is is_said


def steps(job: str, now_ns: int, *seconds: float) -> Iterator[Step]:
    """Give the steps of two ranks, of which the second is a little faster."""
    for number, step_s in enumerate(seconds):
        for rank in (0, 1):
            end_ns = now_ns + int(step_s * NS_PER_S) - rank
            when = {"step": number, "start_ns": now_ns, "end_ns": end_ns}
            yield Step(host=f"{job}-h{rank}", job=job, attempt=0, world_rank=rank, source="told", **when)


def test_step_time_of_a_job_is_there_while_it_makes_steps(api: Api, metrics: SystemMetrics) -> None:
    clock = api.parts.clock
    assert isinstance(clock, HastyClock)
    put(api.parts.store, steps("steps", clock.now_ns(), 2.0, 4.0, 3.0))
    assert series_of(metrics)["lockstep_job_step_seconds", "steps"] == 3.0
    clock.skip(ENDED_S + 60)
    assert ("lockstep_job_step_seconds", "steps") not in series_of(SystemMetrics(api.parts))


def test_jobs_with_gauges_are_no_more_than_the_setting_allows(api: Api, metrics: SystemMetrics) -> None:
    now_ns = api.parts.clock.now_ns()
    put(api.parts.store, (step for number in range(6) for step in steps(f"many-{number}", now_ns, 1.0)))
    save_incidents(api.parts.control, [incident(f"i{number}", job=f"many-{number}") for number in range(6)], None)
    series = series_of(metrics)
    for name in ("lockstep_job_step_seconds", "lockstep_job_incidents"):
        assert sum(key[0] == name for key in series) == 3
    assert series["lockstep_incidents_open", "comm_slow"] == 6


def test_new_incident_and_ended_action_count_once_with_their_times(metrics: SystemMetrics, api: Api) -> None:
    found = incident("a", opened_ns=100 + 7 * NS_PER_S)
    metrics.watch([told(found, number=5, first=5)], known=4)
    metrics.watch([told(found, number=6, first=5)], known=5)
    series = series_of(metrics)
    assert series["lockstep_verdicts_total", "comm_slow"] == 1
    assert (series["lockstep_detection_seconds_count", ""], series["lockstep_detection_seconds_sum", ""]) == (1, 7)
    save_incidents(api.parts.control, [incident("i1", opened_ns=10 * NS_PER_S)], None)
    metrics.watch([ended("d1", "executing")], known=0)
    assert ("lockstep_actions_total", "replace,done") not in series_of(metrics)
    for _ in range(2):
        metrics.watch([ended("d1")], known=0)
    metrics.watch([ended("d2", "failed", isolated="failed")], known=0)
    series = series_of(metrics)
    assert [series["lockstep_actions_total", f"replace,{state}"] for state in ("done", "failed")] == [1, 1]
    assert (series["lockstep_quarantine_seconds_count", ""], series["lockstep_quarantine_seconds_sum", ""]) == (1, 30)


def test_running_process_counts_what_others_write_and_no_label_counts_ranks(api: Api) -> None:
    save_incidents(api.parts.control, [incident("i1")], None)
    eventually(lambda: ("lockstep_verdicts_total", "comm_slow") in scrape(api))
    save_decisions(api.parts.control, [decision("d1")], None)
    eventually(lambda: any(name == "lockstep_decisions_total" for name, _ in scrape(api)))
    families = text_string_to_metric_families(api.get("/metrics").text)
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    states = {"state", "kind", "target"}
    assert labels <= states | {"version", "class", "job", "action", "mode", "result", "source", "le"}


def test_store_or_control_that_is_away_is_named_instead_of_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ControlAway("locked")

    with running_api(tmp_path, AwayStore()) as api:
        save_incidents(api.parts.control, [incident("a")], None)
        series = scrape(api)
        assert series["lockstep_incidents_open", "comm_slow"] == 1
        assert (series["lockstep_metrics_unread", "store"], series["lockstep_metrics_unread", "control"]) == (1, 0)
        monkeypatch.setattr(health, "read_queue", fail)
        series = series_of(SystemMetrics(replace(api.parts, store=NoJobs())))
    assert (series["lockstep_metrics_unread", "control"], series["lockstep_metrics_unread", "store"]) == (1, 0)
    assert not {name for name, _ in series} & {"lockstep_nodes_out", "lockstep_alert_queue_oldest_seconds"}


def test_scrapers_that_come_together_share_one_look_and_the_next_gets_another(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    with running_api(tmp_path, NoJobs()) as api:
        metrics = SystemMetrics(replace(api.parts, clock=clock))
        assert ("lockstep_incidents_open", "comm_slow") not in series_of(metrics)
        save_incidents(api.parts.control, [incident("a")], None)
        clock.advance(FRESH_S - 0.001)
        assert ("lockstep_incidents_open", "comm_slow") not in series_of(metrics), "it was asked a moment ago"
        clock.advance(0.001)
        assert series_of(metrics)["lockstep_incidents_open", "comm_slow"] == 1


def test_alerts_that_nobody_got_are_counted_by_kind_with_their_age(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    settings = Settings(alerts=AlertSettings(targets=(target("am", "alertmanager"),)))
    with running_api(tmp_path, NoJobs(), settings=settings) as api:
        control = api.parts.control
        metrics = SystemMetrics(replace(api.parts, clock=clock))
        assert series_of(metrics)["lockstep_alert_queue_oldest_seconds", ""] == 0
        for name in ("am", "long-gone"):
            told = [Outgoing(name, make_notification(number=n), replaces=False, is_end=False) for n in (1, 2)]
            save_round(control, api.lease("alerts"), told, [])
        clock.advance(61)
        series = series_of(metrics)
    messages = {where: count for (name, where), count in series.items() if name == "lockstep_alert_queue_messages"}
    waiting = {"alertmanager,waiting": 2, "alertmanager,sending": 0, "alertmanager,dead": 0, "removed,waiting": 2}
    assert messages == waiting
    assert series["lockstep_alert_queue_oldest_seconds", ""] == 61


def test_setting_opens_metrics_to_scrapers_on_this_machine_and_to_nobody_behind_a_proxy(tmp_path: Path) -> None:
    with running_api(tmp_path, NoJobs(), settings=Settings(api=ApiSettings(open_metrics=True))) as api:
        assert "lockstep_build_info" in api.client.get("/metrics").text
        for headers in ({"X-Forwarded-For": "10.0.0.9"}, {"Forwarded": "for=10.0.0.9"}):
            check_problem(api.client.get("/metrics", headers=headers), 401, "no-token")
        check_problem(api.client.get("/api/v1/incidents"), 401, "no-token")
