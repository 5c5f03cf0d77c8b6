"""The first page says what is wrong now, and nothing in a name can take it over."""

from pathlib import Path

from lockstep.control.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, batch_headers, check_problem, running_api
from tests.api.fake_store import FakeStore, away
from tests.api.gateway.build import batch
from tests.lockstep.control.build import incident
from tests.waiting import eventually


def test_page_without_incidents_does_not_claim_health(api: Api) -> None:
    answer = api.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No incident. That is silence, not proof of health." in answer.text


def test_page_names_the_part_the_reason_and_the_cost(api: Api) -> None:
    save_incidents(api.parts.control, [incident("i1", job="train-7")], None)
    text = api.get("/").text
    assert "<h2>nic:h3/eth1</h2>" in text
    assert "h3&#39;s eth1 sends at a tenth of its rate, says Zoë" in text
    assert "job train-7" in text
    assert "255 ranks wait" in text
    assert "steps take 1.42 times as long" in text
    assert 'href="/api/v1/incidents/i1"' in text


def test_closed_incident_says_why_it_was_closed(api: Api) -> None:
    save_incidents(api.parts.control, [incident("i1", state="closed")], None)
    assert "closed: the NIC was replaced" in api.get("/").text


def test_names_are_shown_and_never_run(api: Api) -> None:
    attack = "<script>alert('x')</script>"
    told = incident("i1", job=attack)
    verdict = told.verdict.model_copy(update={"component": attack, "reason": attack})
    save_incidents(api.parts.control, [told.model_copy(update={"verdict": verdict, "closed_because": attack})], None)
    text = api.get("/").text
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") == 4


def test_page_shows_a_notice_and_that_telemetry_waits(tmp_path: Path, shared_store: Store) -> None:
    gateway_store = FakeStore(fault=away())
    with running_api(tmp_path, shared_store, gateway_store=gateway_store, notice="Demo: <b>told</b>") as api:
        assert "Demo: &lt;b&gt;told&lt;/b&gt;" in api.get("/").text
        api.client.post("/api/v1/ingest", content=batch("a"), headers=batch_headers(api.make_token("ingest", "h0")))
        eventually(lambda: "Telemetry waits on disk: the store at nowhere does not answer" in api.get("/").text)


def test_page_needs_a_token_too(api: Api) -> None:
    check_problem(api.client.get("/"), 401, "no-token")
