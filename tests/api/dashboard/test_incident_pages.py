"""An incident's page answers in the order in which people ask, and takes their word on it."""

import pytest

from api.dashboard import pages, words
from api.dashboard.location import Location, choose_ranks, find_cables, say_ranks
from api.views.ranks import Rank
from lockstep.fabrics import leaf_spine
from lockstep.state.decisions import list_orders, list_outcomes
from lockstep.state.incidents import save_incidents
from lockstep.verdict import FaultClass, RuledOut
from tests.api.build import Api
from tests.api.dashboard.build import ATTACK, SHOWN, browse, incident_of, send
from tests.lockstep.state.build import verdict


def test_list_can_be_narrowed_and_paged(api: Api) -> None:
    now_ns = api.parts.clock.now_ns()
    save_incidents(
        api.parts.control, [incident_of(f"i{number}", "train", now_ns - number) for number in range(60)], None
    )
    first = browse(api, "/incidents", job="train").text
    assert first.count("<article") == 50
    link = first[first.index("/incidents?job=train&amp;cursor=") :].partition('"')[0].replace("&amp;", "&")
    assert browse(api, link).text.count("<article") == 10
    assert "No incident of job other." in browse(api, "/incidents", job="other").text


def test_short_sentence_is_the_headline_and_questions_follow_in_order(acted: Api) -> None:
    text = browse(acted, "/incidents/i1").text
    assert '<h1 id="sentence">nic:h3/eth1 slows what it sends since ' in text
    assert " UTC: steps take 1.42 times as long, 255 ranks wait</h1>" in text
    assert "h3&#39;s eth1 sends at a tenth of its rate, says Zoë</p>" in text
    order = ["What it is", "What changed", "Why not the others", "What to do", "Evidence", "Step time"]
    order += ["Delay between ranks", "Has it done this before?", "What happened", "Was it right?", "For the ticket"]
    places = [text.index(f">{title}") for title in order]
    assert places == sorted(places)


def test_page_says_why_not_the_others_and_what_would_overturn_it(acted: Api) -> None:
    text = browse(acted, "/incidents/i1").text
    assert "others cross it at full rate" in text
    assert 'It could as well be <span class="part">link:h3/eth1--leaf1</span>' in text
    assert "Overturned if" in text
    assert "The network team is needed." in text


def test_decision_shows_every_way_with_its_cost(acted: Api) -> None:
    text = browse(acted, "/incidents/i1").text
    assert "Restart with a spare" in text
    assert "a spare is cheaper than waiting" in text
    assert "Do nothing" in text
    assert "goes on slowly" in text
    assert "Last checkpoint" in text


def test_capture_of_a_job_with_slashes_can_be_fetched(acted: Api) -> None:
    text = browse(acted, "/incidents/i1").text
    assert 'href="/api/v1/jobs/team/run%207/capture?since_s=' in text


def test_hostile_names_are_shown_and_never_run(api: Api) -> None:
    cleared = (RuledOut(component=ATTACK, because=ATTACK),)
    evidence = ({"kind": ATTACK, ATTACK: [{"from": ATTACK}]},)
    told = incident_of(
        "i1",
        f"a/{ATTACK}",
        api.parts.clock.now_ns(),
        component=f"nic:{ATTACK}",
        reason=ATTACK,
        ruled_out=cleared,
        evidence=evidence,
        ambiguous_with=(ATTACK,),
    )
    save_incidents(api.parts.control, [told], None)
    text = browse(api, "/incidents/i1").text
    assert "<script>" not in text
    assert text.count(SHOWN) >= 8


def test_only_who_may_act_is_offered_to(acted: Api) -> None:
    assert "Approve" not in browse(acted, "/incidents/i1").text
    assert "Log in" in browse(acted, "/incidents/i1").text
    offered = browse(acted, "/incidents/i1", acted.make_token("act")).text
    assert 'value="approve">Approve' in offered
    assert 'value="reject">Reject' in offered
    assert 'value="undo"' not in offered  # nothing was done yet


@pytest.mark.parametrize("kind", ["approve", "reject", "undo"])
def test_word_of_a_person_is_kept_with_its_reason(acted: Api, kind: str) -> None:
    answer = send(acted, "/incidents/i1/orders", acted.make_token("act"), decision="d1", kind=kind, why="I know")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/incidents/i1#decision")
    (order,) = list_orders(acted.parts.control, "d1")
    assert (order.kind, order.who, order.why) == (kind, "test", "I know")


def test_reader_who_sends_the_form_is_refused_in_words(acted: Api) -> None:
    answer = send(acted, "/incidents/i1/orders", acted.make_token("read"), decision="d1", kind="approve", why="")
    assert answer.status_code == 403
    assert "You may not do this" in answer.text
    assert "a token of scope read does not allow acting" in answer.text
    assert list_orders(acted.parts.control, "d1") == []


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"decision": "d1", "kind": "burn"}, "is none of approve, reject, undo"),
        ({"decision": "d9", "kind": "approve"}, "there is no decision"),
        ({"decision": "d1", "kind": "approve", "why": "x" * 1001}, "why: String should have at most 1000 characters"),
    ],
)
def test_bad_form_gets_a_sentence(acted: Api, form: dict[str, str], sentence: str) -> None:
    answer = send(acted, "/incidents/i1/orders", acted.make_token("act"), **form)
    assert answer.status_code in (400, 404)
    assert sentence in answer.text


def test_decision_of_another_incident_is_not_taken(acted: Api) -> None:
    save_incidents(acted.parts.control, [incident_of("i2", "other", acted.parts.clock.now_ns())], None)
    answer = send(acted, "/incidents/i2/orders", acted.make_token("act"), decision="d1", kind="approve")
    assert answer.status_code == 400
    assert "decision d1 is not about incident i2" in answer.text


def test_outcome_is_kept_and_shown(acted: Api) -> None:
    token = acted.make_token("act")
    answer = send(acted, "/incidents/i1/outcome", token, was_right="false", part=" gpu:h3/1 ", why="bent pin")
    assert answer.headers["Location"] == "/incidents/i1#outcome"
    kept = list_outcomes(acted.parts.control)["i1"]
    assert (kept.was_right, kept.part, kept.why) == (False, "gpu:h3/1", "bent pin")
    assert "bent pin" in browse(acted, "/incidents/i1").text
    refused = send(acted, "/incidents/i1/outcome", token, was_right="perhaps")
    assert (refused.status_code, "was_right" in refused.text) == (400, True)


def test_unknown_incident_is_a_page_for_people_and_a_problem_for_programs(acted: Api) -> None:
    answer = browse(acted, "/incidents/nope")
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    assert "there is no incident &#39;nope&#39;" in answer.text
    assert acted.get("/incidents/nope").headers["Content-Type"] == "application/problem+json"


def test_bad_filter_is_a_page_too(acted: Api) -> None:
    answer = browse(acted, "/incidents", state="half-open")
    assert answer.status_code == 422
    assert "state: Input should be" in answer.text
    assert browse(acted, "/incidents", cursor="x").status_code == 400


def test_ranks_of_the_host_are_meant_or_those_of_its_gpu() -> None:
    ranks = [Rank(rank=number, host=f"h{number // 4}", gpu=number % 4) for number in range(8)]
    assert choose_ranks("nic:h1/eth0", "h1", ranks) == [4, 5, 6, 7]
    assert choose_ranks("gpu:h1/2", "h1", ranks) == [6]


def test_nic_is_told_with_what_it_is_plugged_into() -> None:
    topology = leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=1)
    assert find_cables("nic:h1/eth1", topology) == ["plugged into leaf0"]
    assert find_cables("host:h1", topology) == []
    assert find_cables("nic:h1/eth1", None) == []


def test_place_is_one_line() -> None:
    place = Location("h3", "r7", (24, 25, 26), ("plugged into leaf1/12",), ("train",))
    assert str(place) == "host h3, rack r7, ranks 24 to 26; plugged into leaf1/12"


def test_many_ranks_that_are_no_row_are_cut_short() -> None:
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
    ],
)
def test_first_questions_have_an_answer(fault_class: FaultClass, component: str, state: str, domain: str) -> None:
    told = verdict("train").model_copy(update={"fault_class": fault_class, "component": component})
    assert words.state_words(told) == state
    assert words.domain_words(told) == domain
    assert words.proof_of(told) is not None


def test_software_is_no_reason_to_take_hardware_away() -> None:
    told = verdict("train").model_copy(update={"fault_class": "software"})
    assert "No reason to take hardware away" in words.origin_words(told)


def test_command_of_a_closed_server_asks_for_a_token() -> None:
    command = pages.curl_of("https://head/", pages.job_call("it's/7", "matrix"), is_open=False)
    assert command.startswith('curl -sS -H "Authorization: Bearer $LOCKSTEP_TOKEN" ')
    assert command.endswith("https://head/api/v1/jobs/it%27s/7/matrix")
