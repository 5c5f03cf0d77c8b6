"""Incidents come newest first, page by page, each once; one comes with its decisions."""

import base64
import re
from typing import Any

import pytest

from api.views.incidents import view_incident
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, bearer, check_problem
from tests.lockstep.state.build import decision, incident

PATH = "/api/v1/incidents"


def save(api: Api, *numbers: int, **fields: Any) -> None:
    save_incidents(api.parts.control, [incident(f"i{n}", opened_ns=n // 2, **fields) for n in numbers], None)


def ids(document: dict[str, Any]) -> list[str]:
    return [item["id"] for item in document["items"]]


def test_no_incident_is_an_empty_list(api: Api) -> None:
    assert api.get(PATH).json() == {"items": [], "next": None}


def test_incident_is_shown_with_its_verdict_as_it_is_documented(api: Api) -> None:
    save(api, 1)
    (item,) = api.get(PATH).json()["items"]
    assert item["verdict"]["class"] == "comm_slow"
    assert item["verdict"]["component"] == "nic:h3/eth1"
    shown = view_incident(incident("i1", opened_ns=0), None)
    assert item == shown.model_dump(mode="json", by_alias=True)


def test_incidents_come_newest_first(api: Api) -> None:
    save(api, 1, 5, 3)
    assert ids(api.get(PATH).json()) == ["i5", "i3", "i1"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_hold_every_incident_once_also_those_opened_at_the_same_time(api: Api, limit: int) -> None:
    save(api, *range(7))  # two each were opened at the same nanosecond
    found, cursor = [], None
    for _ in range(9):
        page = api.get(PATH, {"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
        found += ids(page)
        assert len(page["items"]) <= limit
        cursor = page["next"]
        if cursor is None:
            break
    assert found == [f"i{number}" for number in reversed(range(7))]


def test_link_leads_to_the_next_page_with_the_same_filters(api: Api) -> None:
    save(api, *range(4), job="a & b")
    answer = api.get(PATH, {"limit": 2, "job": "a & b"})
    (link,) = re.findall(r'^<([^>]+)>; rel="next"$', answer.headers["Link"])
    following = api.get(link)
    assert ids(following.json()) == ["i1", "i0"]


def test_last_page_has_no_link(api: Api) -> None:
    save(api, 1)
    assert "Link" not in api.get(PATH, {"limit": 2}).headers


def test_incidents_can_be_chosen_by_job_and_state(api: Api) -> None:
    save(api, 1, job="a")
    save(api, 2, job="b")
    save(api, 3, job="a", state="closed")
    assert ids(api.get(PATH, {"job": "a"}).json()) == ["i3", "i1"]
    assert ids(api.get(PATH, {"state": "open"}).json()) == ["i2", "i1"]
    assert ids(api.get(PATH, {"job": "a", "state": "closed"}).json()) == ["i3"]
    assert ids(api.get(PATH, {"job": "c"}).json()) == []


def cursor_of(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor", ["!", "a", "abc", "ü", "=", cursor_of(b"x:i1"), cursor_of(b"\xff:i1"), cursor_of(b":i1"), "A" * 5000]
)
def test_cursor_that_we_never_gave_is_refused(api: Api, cursor: str) -> None:
    sentence = check_problem(api.get(PATH, {"cursor": cursor}), 400, "bad-input")
    assert sentence == f"{cursor[:100]!r} is not a cursor that this server gave"


def test_cursor_beyond_all_numbers_is_refused(api: Api) -> None:
    check_problem(api.get(PATH, {"cursor": cursor_of(b"9" * 30 + b":i1")}), 400, "bad-input")


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "501"}, {"limit": "many"}, {"state": "half"}])
def test_query_that_makes_no_sense_is_refused_and_named(api: Api, query: dict[str, str]) -> None:
    sentence = check_problem(api.get(PATH, query), 422, "bad-request")
    assert sentence.startswith(f"query.{next(iter(query))}: ")


def test_one_incident_comes_with_the_decisions_on_it(api: Api) -> None:
    save(api, 1, 2)
    save_decisions(api.parts.control, [decision("d1", incident="i1"), decision("d2", incident="i2")], None)
    document = api.get(f"{PATH}/i1").json()
    assert document["id"] == "i1"
    assert [found["id"] for found in document["decisions"]] == ["d1"]
    cost = document["decisions"][0]["cost"]
    assert cost == {"downtime_s": 90.5, "throughput_after": 1.0, "gpu_hours": None, "money": None, "risk": None}


def test_incident_that_does_not_exist_is_not_found(api: Api) -> None:
    assert check_problem(api.get(f"{PATH}/i9"), 404, "not-found") == "there is no incident 'i9'"


def test_incidents_can_be_chosen_by_class_and_part(api: Api) -> None:
    save(api, 1)
    assert ids(api.get(PATH, {"class": "comm_slow", "component": "nic:h3/eth1"}).json()) == ["i1"]
    assert ids(api.get(PATH, {"class": "crash"}).json()) == []
    assert ids(api.get(PATH, {"component": "nic:h4/eth1"}).json()) == []


def test_timeline_of_an_incident_comes_page_by_page(api: Api) -> None:
    save(api, 2)
    save_decisions(api.parts.control, [decision(f"d{n}", incident="i2", created_ns=300 + n) for n in range(3)], None)
    first = api.get(f"{PATH}/i2/timeline", {"limit": 2})
    rest = api.get(re.findall(r"^<([^>]+)>", first.headers["Link"])[0]).json()
    assert [entry["kind"] for entry in first.json()["items"] + rest["items"]] == ["opened", *["decision"] * 3]
    assert rest["next"] is None
    check_problem(api.get(f"{PATH}/i9/timeline"), 404, "not-found")


def test_what_changed_and_what_the_part_did_before_belong_to_an_incident(api: Api) -> None:
    save(api, 1)
    assert api.get(f"{PATH}/i1/changes").json() == {"items": [], "next": None}
    part = api.get(f"{PATH}/i1/part").json()
    assert (part["component"], [each["id"] for each in part["history"]]) == ("nic:h3/eth1", ["i1"])
    matrix = api.get(f"{PATH}/i1/matrix").json()
    assert (matrix["job"], matrix["ranks"], matrix["to_ns"]) == ("train", [], 200)


def test_admin_may_read(api: Api) -> None:
    answer = api.client.get(PATH, headers=bearer(api.make_token("admin")))
    assert answer.status_code == 200
