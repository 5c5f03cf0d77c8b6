"""Incidents come newest first and page by page; people see the decisions on them and say yes, no or undo."""

from typing import Any

import httpx
import pytest

from api.views.incidents import view_incident
from lockstep.decision import Decision
from lockstep.state.decisions import save_decisions, save_execution, save_isolated
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import create_token
from tests.api.build import Api, bearer, check_problem
from tests.api.views.build import put, reading
from tests.builders import T0
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import execution, isolated


@pytest.fixture
def actor(api: Api) -> dict[str, str]:
    save_incidents(api.parts.control, [incident("i1")], None)
    secret = create_token(api.parts.control, scope="act", host=None, name="ada", now_ns=T0)
    return bearer(secret)


def publish(api: Api, name: str = "d1", lasts_s: float = 600.0, **changes: object) -> Decision:
    now_ns = api.parts.clock.now_ns()
    made = decision(name).model_copy(update={"expires_ns": now_ns + int(lasts_s * 1e9), **changes})
    save_decisions(api.parts.control, [made], None)
    return made


def test_decision_is_shown_with_orders_and_steps(api: Api, actor: dict[str, str]) -> None:
    publish(api)
    save_execution(api.parts.control, execution("d1"), api.lease("planner"))
    assert api.client.post("/api/v1/decisions/d1/approve", json={"why": "go"}, headers=actor).status_code == 202
    assert list_audit(api.parts.control, 1)[0].what == "approve_decision"
    found = api.get("/api/v1/decisions/d1").json()
    assert [(order["kind"], order["who"], order["why"]) for order in found["orders"]] == [("approve", "ada", "go")]
    assert found["execution"]["steps"][0]["act"] == "isolate"
    (listed,) = api.get("/api/v1/decisions", {"job": "train"}).json()["items"]
    assert (listed["id"], listed["execution"]) == ("d1", "executing")


def test_decision_that_expired_or_does_nothing_or_is_unknown_is_not_approved(api: Api, actor: dict[str, str]) -> None:
    def order(name: str, kind: str) -> httpx.Response:
        return api.client.post(f"/api/v1/decisions/{name}/{kind}", json={}, headers=actor)

    publish(api, lasts_s=-1.0)
    assert "has expired" in check_problem(order("d1", "approve"), 400, "bad-input")
    for kind in ("undo", "reject"):
        assert order("d1", kind).status_code == 202
        assert list_audit(api.parts.control, 1)[0].what == f"{kind}_decision"
    publish(api, "d2", action="none")
    check_problem(order("d2", "approve"), 400, "bad-input")
    check_problem(api.get("/api/v1/decisions/d9"), 404, "not-found")
    check_problem(order("d9", "undo"), 404, "not-found")


def test_each_part_of_a_plan_is_approved_by_itself_also_when_all_is_over(api: Api, actor: dict[str, str]) -> None:
    closed = incident("i1").model_copy(update={"state": "closed", "closed_because": "the node was replaced"})
    save_incidents(api.parts.control, [closed], None)
    publish(api, "giver", job="small", action="reconfigure", part_of="p1", trigger="node h3 joined")
    publish(api, "taker", job="large", action="grow", part_of="p1", trigger="node h3 joined", after=("giver",))
    for name in ("giver", "taker"):
        answer = api.client.post(f"/api/v1/decisions/{name}/approve", json={}, headers=actor)
        assert answer.status_code == 202, answer.text
    publish(api, "alone", job="train")
    refused = api.client.post("/api/v1/decisions/alone/approve", json={}, headers=actor)
    assert "is over" in check_problem(refused, 400, "bad-input")


def isolate(api: Api, component: str = "nic:h3/eth1", **changes: object) -> None:
    publish(api)
    save_isolated(api.parts.control, isolated(component=component, **changes), api.lease("planner"))


@pytest.mark.parametrize("kind", ["test", "return", "rma", "repaired"])
def test_word_on_an_isolated_node_is_kept_with_who_said_it(api: Api, actor: dict[str, str], kind: str) -> None:
    isolate(api)
    answer = api.client.post(f"/api/v1/isolated/h3/{kind}", json={"why": "I know"}, headers=actor)
    assert (answer.status_code, answer.json()["who"], answer.json()["decision"]) == (202, "ada", "d1")
    line = list_audit(api.parts.control, 1)[0]
    assert (line.who, line.what, line.subject, line.why) == ("ada", f"{kind}_node", "h3", "I know")
    (item,) = api.get("/api/v1/isolated").json()["items"]
    assert (item["node"], api.get("/api/v1/downtime").json()) == ("h3", {"items": []})
    assert [(each["kind"], each["who"], each["why"]) for each in item["orders"]] == [(kind, "ada", "I know")]


def test_part_that_is_sent_back_is_named_by_its_sender_or_by_telemetry(api: Api, actor: dict[str, str]) -> None:
    put(api.parts.store, [reading("h3", gpu, f"GPU-{gpu}", T0) for gpu in (0, 1)])
    isolate(api, component="gpu:h3/1")
    given = api.client.post("/api/v1/isolated/h3/rma", json={}, headers=actor).json()
    assert given["part"]["uuid"] == "GPU-1"
    named = {"part": {"uuid": "GPU-9", "serial": "132", "ticket": "RMA-7"}}
    assert api.client.post("/api/v1/isolated/h3/rma", json=named, headers=actor).json()["part"] == named["part"]


def test_word_on_a_node_that_makes_no_sense_is_refused(api: Api, actor: dict[str, str]) -> None:
    isolate(api, state="rma")
    refused = api.client.post("/api/v1/isolated/h3/test", json={}, headers=actor)
    assert check_problem(refused, 400, "bad-input").startswith("h3 was sent back")
    check_problem(api.client.post("/api/v1/isolated/h9/test", json={}, headers=actor), 404, "not-found")
    assert api.client.post("/api/v1/isolated/h3/burn", json={}, headers=actor).status_code == 422


PATH = "/api/v1/incidents"


def save(api: Api, *numbers: int, **fields: Any) -> None:
    save_incidents(api.parts.control, [incident(f"i{n}", opened_ns=n // 2, **fields) for n in numbers], None)


def ids(document: dict[str, Any]) -> list[str]:
    return [item["id"] for item in document["items"]]


def test_incident_is_shown_with_its_verdict_as_it_is_documented(api: Api) -> None:
    assert api.get(PATH).json() == {"items": [], "next": None}
    save(api, 1)
    (item,) = api.get(PATH).json()["items"]
    assert item["verdict"]["class"] == "comm_slow"
    assert item["verdict"]["component"] == "nic:h3/eth1"
    shown = view_incident(incident("i1", opened_ns=0), None)
    assert item == shown.model_dump(mode="json", by_alias=True)
    assert ids(api.get(PATH, {"class": "comm_slow", "component": "nic:h3/eth1"}).json()) == ["i1"]
    assert ids(api.get(PATH, {"class": "crash"}).json()) == []
    assert ids(api.get(PATH, {"component": "nic:h4/eth1"}).json()) == []
    assert api.get(f"{PATH}/i1/changes").json() == {"items": [], "next": None}
    part = api.get(f"{PATH}/i1/part").json()
    assert (part["component"], [each["id"] for each in part["history"]]) == ("nic:h3/eth1", ["i1"])
    matrix = api.get(f"{PATH}/i1/matrix").json()
    assert (matrix["job"], matrix["ranks"], matrix["to_ns"]) == ("train", [], 200)
    assert check_problem(api.get(f"{PATH}/i9"), 404, "not-found") == "there is no incident 'i9'"
    save(api, 2, job="b")
    save(api, 3, job="b", state="closed")  # opened at the same nanosecond as the one before
    assert [item["id"] for item in api.walk(PATH, {"limit": 1, "job": "b"})] == ["i3", "i2"]
    assert ids(api.get(PATH, {"state": "open"}).json()) == ["i2", "i1"]
    assert ids(api.get(PATH, {"job": "b", "state": "closed"}).json()) == ["i3"]


def test_cursor_that_we_never_gave_and_query_that_makes_no_sense_are_refused(api: Api) -> None:
    for cursor in ("!", "ü", "=", "eDppMQ", "A" * 5000):
        sentence = check_problem(api.get(PATH, {"cursor": cursor}), 400, "bad-input")
        assert sentence == f"{cursor[:100]!r} is not a cursor that this server gave"
    for name, value in (("limit", "0"), ("limit", "501"), ("limit", "many"), ("state", "half")):
        assert check_problem(api.get(PATH, {name: value}), 422, "bad-request").startswith(f"query.{name}: ")


def test_one_incident_comes_with_the_decisions_on_it_and_its_timeline(api: Api) -> None:
    save(api, 1, 2)
    save_decisions(api.parts.control, [decision("d1", incident="i1")], None)
    save_decisions(api.parts.control, [decision(f"e{n}", incident="i2", created_ns=300 + n) for n in range(3)], None)
    document = api.get(f"{PATH}/i1").json()
    assert (document["id"], [found["id"] for found in document["decisions"]]) == ("i1", ["d1"])
    cost = document["decisions"][0]["cost"]
    assert cost == {"downtime_s": 90.5, "throughput_after": 1.0, "gpu_hours": None, "money": None, "risk": None}
    assert [entry["kind"] for entry in api.walk(f"{PATH}/i2/timeline", {"limit": 2})] == ["opened", *["decision"] * 3]
    check_problem(api.get(f"{PATH}/i9/timeline"), 404, "not-found")
