"""The first page says what is wrong now, with jobs and our own trouble, and nothing in a name can take it over."""

from pathlib import Path

from api.dashboard.settings import HIDDEN, show_settings
from lockstep.config import load_settings
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, batch_headers, check_problem, running_api
from tests.api.dashboard.build import ATTACK, SHOWN, AwayStore, browse, incident_of, send
from tests.api.fake_store import away
from tests.api.ingest.build import batch
from tests.lockstep.state.build import incident
from tests.waiting import eventually


def test_page_without_incidents_does_not_claim_health(api: Api) -> None:
    answer = browse(api, "/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No incident. That is silence, not proof of health." in answer.text


def test_page_names_the_part_the_reason_and_the_cost(acted: Api) -> None:
    text = browse(acted, "/").text
    assert '<a href="/incidents/i1">nic:h3/eth1 slows what it sends since ' in text
    assert "h3&#39;s eth1 sends at a tenth of its rate, says Zoë" in text
    assert "steps take 1.42 times as long, 255 ranks wait" in text
    assert 'href="/incidents/i1"' in text
    assert "97 % sure" in text


def test_decision_that_waits_for_a_person_is_counted_and_led_to(acted: Api) -> None:
    text = browse(acted, "/").text
    assert "<b>1</b><span>approvals pending</span>" in text
    assert 'href="/incidents/i1#decision">approval pending: restart with a spare</a>' in text


def test_job_that_stands_still_comes_before_one_that_is_slow(api: Api) -> None:
    now_ns = api.parts.clock.now_ns()
    hung = incident_of("i2", "b", now_ns - 10**10, fault_class="comm_hang", grade="alert", component="nic:h9/eth9")
    noted = incident_of("i3", "c", now_ns + 10**9, grade="note", component="gpu:h8/1")
    save_incidents(api.parts.control, [incident_of("i1", "a", now_ns), hung, noted], None)
    text = browse(api, "/").text
    places = [text.index(f'<a href="/incidents/{each}">') for each in ("i2", "i1", "i3")]
    assert places == sorted(places)


def test_part_that_changes_comes_without_its_frame(acted: Api) -> None:
    text = browse(acted, "/live").text
    assert "<html" not in text
    assert 'data-news="1 open incidents"' in text


def test_closed_incident_says_why_it_was_closed(api: Api) -> None:
    save_incidents(api.parts.control, [incident("i1", state="closed")], None)
    text = browse(api, "/").text
    assert "Closed lately" in text
    assert "the NIC was replaced" in text


def test_names_are_shown_and_never_run(api: Api) -> None:
    told = incident_of("i1", ATTACK, api.parts.clock.now_ns(), component=ATTACK, reason=ATTACK)
    save_incidents(api.parts.control, [told], None)
    text = browse(api, "/").text
    assert "<script>" not in text
    assert text.count(SHOWN) == 3  # part, sentence, job
    assert "/job?job=%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%22%26" in text


def test_store_that_is_away_takes_the_jobs_and_leaves_the_incidents(api: Api) -> None:
    save_incidents(api.parts.control, [incident_of("i1", "train", api.parts.clock.now_ns())], None)
    text = browse(api, "/").text
    assert "nic:h3/eth1" in text
    assert "the store at nowhere does not answer" in text
    assert "Jobs are not known while the store does not answer." in text


def test_page_shows_a_notice_and_that_telemetry_waits(tmp_path: Path) -> None:
    with running_api(tmp_path, AwayStore(fault=away()), notice="Demo: <b>told</b>") as api:
        assert "<strong>Demo</strong>: &lt;b&gt;told&lt;/b&gt;" in browse(api, "/").text
        api.client.post("/api/v1/ingest", content=batch("a"), headers=batch_headers(api.make_token("ingest", "h0")))
        eventually(lambda: "Telemetry waits on disk: the store at nowhere does not answer" in browse(api, "/").text)


def test_page_needs_a_token_too(api: Api) -> None:
    check_problem(api.client.get("/"), 401, "no-token")


def test_browser_without_a_session_is_led_to_the_login(api: Api) -> None:
    answer = api.client.get("/incidents?state=open", headers={"Accept": "text/html"}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["Location"].startswith("/login?next=")


def test_secrets_are_named_and_not_shown(tmp_path: Path) -> None:
    environment = {
        "LOCKSTEP_CONTROL_URL": "postgresql://ada:hunter2@db/lockstep",
        "LOCKSTEP_PLANNER_CONTROLLER_OPTIONS": '{"password": "hunter2"}',
        "LOCKSTEP_API_LISTEN": "127.0.0.1:9",
    }
    file = tmp_path / "lockstep.toml"
    file.write_text("")
    shown = {(each.section, each.key): each for each in show_settings(load_settings(environment, file))}
    assert shown["control", "url"].value == "postgresql://…@db/lockstep"
    assert shown["planner", "controller_options"].value == HIDDEN
    assert (shown["api", "listen"].value, shown["api", "listen"].is_default) == ("127.0.0.1:9", False)
    assert "hunter2" not in "".join(each.value for each in shown.values())


def test_every_setting_is_on_the_page_with_its_meaning(api: Api) -> None:
    text = browse(api, "/settings").text
    assert "gpu_hour_price" in text
    assert "no receiver of alerts is set" in text
    assert text.count("<tr data-row>") == len(show_settings(api.parts.settings))


def test_unknown_receiver_cannot_be_tried(api: Api) -> None:
    answer = send(api, "/settings/receivers/pager/test", api.make_token("admin"))
    assert (answer.status_code, "pager" in answer.text) == (404, True)
    assert send(api, "/settings/receivers/pager/test", api.make_token("act")).status_code == 403
