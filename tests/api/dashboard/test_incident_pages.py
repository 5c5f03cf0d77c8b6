"""The first page says what is wrong now; an incident's page answers in the order in which people ask."""

import json
from pathlib import Path

import pytest

from api.dashboard import pages, words
from api.dashboard.cluster import HIDDEN, show_settings
from api.dashboard.incidents import Location, choose_ranks, find_cables, say_ranks
from api.views.ranks import Rank
from lockstep.config import load_settings
from lockstep.fabrics import leaf_spine
from lockstep.state.decisions import list_orders, list_outcomes
from lockstep.state.incidents import save_incidents
from lockstep.verdict import FaultClass, RuledOut
from tests.api.build import Api, batch_headers, running_api
from tests.api.dashboard.build import ATTACK, SHOWN, browse, incident_of, send
from tests.api.fake_store import AwayStore, away
from tests.api.ingest.build import batch
from tests.lockstep.state.build import incident, verdict
from tests.waiting import eventually


def test_list_can_be_narrowed_and_paged(api: Api) -> None:
    now_ns = api.parts.clock.now_ns()
    told = [incident_of(f"i{number}", "train", now_ns - number) for number in range(60)]
    save_incidents(api.parts.control, told, None)
    first = browse(api, "/incidents", job="train").text
    assert first.count("<article") == 50
    link = first[first.index("/incidents?job=train&amp;cursor=") :].partition('"')[0].replace("&amp;", "&")
    assert browse(api, link).text.count("<article") == 10
    assert "No incident of job other." in browse(api, "/incidents", job="other").text


def test_short_sentence_is_the_headline_and_questions_follow_in_order(acted: Api) -> None:
    text = browse(acted, "/incidents/i1").text
    order = ["What it is", "What changed", "Why not the others", "What to do", "Evidence", "Step time"]
    order += ["Delay between ranks", "Has it done this before?", "What happened", "Was it right?", "For the ticket"]
    places = [text.index(f">{title}") for title in order]
    assert places == sorted(places)
    for shown in (
        '<h1 id="sentence">nic:h3/eth1 slows what it sends since ',
        " UTC: steps take 1.42 times as long, 255 ranks wait, ",
        " GPU-hours lost</h1>",
        "h3&#39;s eth1 sends at a tenth of its rate, says Zoë</p>",
        "others cross it at full rate",
        'It could as well be <span class="part">link:h3/eth1--leaf1</span>',
        "Overturned if",
        "The network team is needed.",
        "Restart with a spare",
        "a spare is cheaper than waiting",
        "Do nothing",
        "goes on slowly",
        "Last checkpoint",
        'href="/api/v1/jobs/team/run%207/capture?since_s=',
    ):
        assert shown in text


def test_hostile_names_are_shown_and_never_run_also_while_the_store_is_away(api: Api) -> None:
    named = {"component": f"nic:{ATTACK}", "reason": ATTACK, "ambiguous_with": (ATTACK,)}
    cleared = (RuledOut(component=ATTACK, because=ATTACK),)
    evidence = ({"kind": ATTACK, ATTACK: [{"from": ATTACK}]},)
    told = incident_of("i1", ATTACK, api.parts.clock.now_ns(), **named, ruled_out=cleared, evidence=evidence)
    save_incidents(api.parts.control, [told], None)
    page, first_page = browse(api, "/incidents/i1").text, browse(api, "/").text
    assert "<script>" not in page + first_page
    assert page.count(SHOWN) >= 8
    assert first_page.count(SHOWN) == 3  # part, sentence, job
    assert "/job?job=%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%22%26" in first_page
    assert "the store at nowhere does not answer" in first_page
    assert "Jobs are not known while the store does not answer." in first_page


def test_only_who_may_act_is_offered_to_and_their_word_is_kept_with_its_reason(acted: Api) -> None:
    assert "Approve" not in browse(acted, "/incidents/i1").text
    assert "Log in" in browse(acted, "/incidents/i1").text
    offered = browse(acted, "/incidents/i1", acted.make_token("act")).text
    assert 'value="approve">Approve' in offered
    assert 'value="reject">Reject' in offered
    assert 'value="undo"' not in offered  # nothing was done yet
    for kind in ("approve", "reject", "undo"):
        answer = send(acted, "/incidents/i1/orders", acted.make_token("act"), decision="d1", kind=kind, why="I know")
        assert (answer.status_code, answer.headers["Location"]) == (303, "/incidents/i1#decision")
        order = list_orders(acted.parts.control, "d1")[-1]
        assert (order.kind, order.who, order.why) == (kind, "test", "I know")


def test_bad_form_and_reader_who_sends_it_get_a_sentence(acted: Api) -> None:
    save_incidents(acted.parts.control, [incident_of("i2", "other", acted.parts.clock.now_ns())], None)
    good = {"decision": "d1", "kind": "approve"}
    refused: list[tuple[str, dict[str, str], int, str]] = [
        ("i1", {"kind": "burn"}, 400, "is none of approve, reject, undo"),
        ("i1", {"decision": "d9"}, 404, "there is no decision"),
        ("i1", {"why": "x" * 1001}, 400, "why: String should have at most 1000 characters"),
        ("i2", {}, 400, "decision d1 is not about incident i2"),
    ]
    for incident_id, form, status, sentence in refused:
        answer = send(acted, f"/incidents/{incident_id}/orders", acted.make_token("act"), **(good | form))
        assert (answer.status_code, sentence in answer.text) == (status, True)
    answer = send(acted, "/incidents/i1/orders", acted.make_token("read"), **good)
    assert answer.status_code == 403
    assert "You may not do this" in answer.text
    assert "a token of scope read does not allow acting" in answer.text
    assert list_orders(acted.parts.control, "d1") == []


def test_outcome_is_kept_and_shown(acted: Api) -> None:
    token = acted.make_token("act")
    answer = send(acted, "/incidents/i1/outcome", token, was_right="false", part=" gpu:h3/1 ", why="bent pin")
    assert answer.headers["Location"] == "/incidents/i1#outcome"
    kept = list_outcomes(acted.parts.control)["i1"]
    assert (kept.was_right, kept.part, kept.why) == (False, "gpu:h3/1", "bent pin")
    assert "bent pin" in browse(acted, "/incidents/i1").text
    refused = send(acted, "/incidents/i1/outcome", token, was_right="perhaps")
    assert (refused.status_code, "was_right" in refused.text) == (400, True)


def test_unknown_incident_and_bad_filter_are_pages_for_people_and_problems_for_programs(acted: Api) -> None:
    answer = browse(acted, "/incidents/nope")
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    assert "there is no incident &#39;nope&#39;" in answer.text
    assert acted.get("/incidents/nope").headers["Content-Type"] == "application/problem+json"
    answer = browse(acted, "/incidents", state="half-open")
    assert answer.status_code == 422
    assert "state: Input should be" in answer.text
    assert browse(acted, "/incidents", cursor="x").status_code == 400


def test_location_is_one_line_with_ranks_and_cables() -> None:
    ranks = [Rank(rank=number, host=f"h{number // 4}", gpu=number % 4) for number in range(8)]
    assert choose_ranks("nic:h1/eth0", "h1", ranks) == [4, 5, 6, 7]
    assert choose_ranks("gpu:h1/2", "h1", ranks) == [6]
    topology = leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=1)
    assert find_cables("nic:h1/eth1", topology) == ["plugged into leaf0"]
    assert find_cables("host:h1", topology) == []
    assert find_cables("nic:h1/eth1", None) == []
    place = Location("h3", "r7", (24, 25, 26), ("plugged into leaf1/12",), ("train",))
    assert str(place) == "host h3, rack r7, ranks 24 to 26; plugged into leaf1/12"
    assert say_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert say_ranks([]) == ""


@pytest.mark.parametrize(
    ("fault_class", "component", "state", "domain"),
    [
        ("comm_slow", "nic:h3/eth1", "slow", "Communication. The network team is needed."),
        ("comm_hang", "nvlink:h3/1", "hung", "Communication, inside of the host. The network team is not needed."),
        ("noncomm_hang", "host:h3", "hung", "Not communication. The network team is not needed."),
        ("crash", "gpu:h3/1", "crashed", "Not communication. The network team is not needed."),
        ("global_slow", "job:train", "slow", "Not known: everybody is slower, and nobody stands out."),
        ("telemetry_lost", "switch:leaf1", "unseen", "Not known: nobody sees what the job does there."),
    ],
)
def test_first_questions_have_an_answer(fault_class: FaultClass, component: str, state: str, domain: str) -> None:
    told = verdict("train").model_copy(update={"fault_class": fault_class, "component": component})
    assert words.state_words(told) == state
    assert words.domain_words(told) == domain
    assert words.proof_of(told) is not None


def test_software_is_no_reason_to_take_hardware_away_and_a_closed_server_asks_for_a_token() -> None:
    told = verdict("train").model_copy(update={"fault_class": "software"})
    assert "No reason to take hardware away" in words.origin_words(told)
    command = pages.curl_of("https://head/", pages.job_call("it's/7", "matrix"), is_open=False)
    assert command.startswith('curl -sS -H "Authorization: Bearer $LOCKSTEP_TOKEN" ')
    assert command.endswith("https://head/api/v1/jobs/it%27s/7/matrix")


def test_page_without_incidents_does_not_claim_health_and_says_why_one_was_closed(api: Api) -> None:
    answer = browse(api, "/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No incident. That is silence, not proof of health." in answer.text
    save_incidents(api.parts.control, [incident("i1", state="closed")], None)
    text = browse(api, "/").text
    assert "Closed lately" in text
    assert "the NIC was replaced" in text


def test_page_names_the_part_the_reason_the_cost_and_who_is_waited_for(acted: Api) -> None:
    text = browse(acted, "/").text
    assert '<a href="/incidents/i1">nic:h3/eth1 slows what it sends since ' in text
    assert "h3&#39;s eth1 sends at a tenth of its rate, says Zoë" in text
    assert "steps take 1.42 times as long, 255 ranks wait" in text
    assert "97 % sure" in text
    assert "<b>1</b><span>approvals pending</span>" in text
    assert 'href="/incidents/i1#decision">approval pending: restart with a spare</a>' in text
    text = browse(acted, "/live").text
    assert "<html" not in text
    assert 'data-announcement="1 open incidents"' in text


def test_job_that_stands_still_comes_before_one_that_is_slow(api: Api) -> None:
    now_ns = api.parts.clock.now_ns()
    hung = incident_of("i2", "b", now_ns - 10**10, fault_class="comm_hang", grade="alert", component="nic:h9/eth9")
    noted = incident_of("i3", "c", now_ns + 10**9, grade="note", component="gpu:h8/1")
    save_incidents(api.parts.control, [incident_of("i1", "a", now_ns), hung, noted], None)
    text = browse(api, "/").text
    places = [text.index(f'<a href="/incidents/{each}">') for each in ("i2", "i1", "i3")]
    assert places == sorted(places)


def test_page_shows_a_notice_and_that_telemetry_waits(tmp_path: Path) -> None:
    with running_api(tmp_path, AwayStore(fault=away()), notice="Demo: <b>told</b>") as api:
        assert "<strong>Demo</strong>: &lt;b&gt;told&lt;/b&gt;" in browse(api, "/").text
        api.client.post("/api/v1/ingest", content=batch("a"), headers=batch_headers(api.make_token("ingest", "h0")))
        eventually(lambda: "Telemetry waits on disk: the store at nowhere does not answer" in browse(api, "/").text)


def test_secrets_are_named_and_not_shown(tmp_path: Path) -> None:
    environment = {
        "LOCKSTEP_CONTROL_URL": "postgresql://ada:hunter2@db/lockstep?password=hunter2",
        "LOCKSTEP_PLANNER_CONTROLLER_OPTIONS": '{"password": "hunter2"}',
        "LOCKSTEP_API_LISTEN": "127.0.0.1:9",
        "LOCKSTEP_STORE_NODES": '["https://u:hunter2@ch1:8123/db"]',
        "LOCKSTEP_STORE_CLUSTER": "c",
    }
    file = tmp_path / "lockstep.toml"
    file.write_text("")
    shown = {(each.section, each.key): each for each in show_settings(load_settings(environment, file))}
    assert shown["control", "url"].value == "postgresql://…@db/lockstep?password=…"
    assert json.loads(shown["store", "nodes"].value) == ["https://…@ch1:8123/db"]
    assert shown["planner", "controller_options"].value == HIDDEN
    assert (shown["api", "listen"].value, shown["api", "listen"].is_default) == ("127.0.0.1:9", False)
    assert "hunter2" not in "".join(each.value for each in shown.values())


def test_every_setting_is_on_the_page_with_its_meaning_and_receivers_can_be_tried(api: Api) -> None:
    text = browse(api, "/settings").text
    assert "gpu_hour_price" in text
    assert "no receiver of alerts is set" in text
    assert text.count("<tr data-row>") == len(show_settings(api.parts.settings))
    answer = send(api, "/settings/receivers/pager/test", api.make_token("admin"))
    assert (answer.status_code, "pager" in answer.text) == (404, True)
    assert send(api, "/settings/receivers/pager/test", api.make_token("act")).status_code == 403
