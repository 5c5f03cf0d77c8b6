"""People see decisions with their steps, say yes, no or undo to them, and what an incident turned out to be."""

from typing import Any

import pytest

from lockstep.decision import Decision
from lockstep.records import GpuHealth
from lockstep.state.decisions import list_orders, save_decisions, save_execution, save_isolated
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, take_lease
from lockstep.state.tokens import create_token
from lockstep.tables import TABLE_BY_NAME
from tests.api.build import Api, bearer, check_problem
from tests.builders import T0, rows
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


def lease_of(api: Api) -> Lease:
    taken = take_lease(api.parts.control, "planner", "test", 10**12, api.parts.clock.now_ns())
    assert taken is not None
    return taken


def test_decision_is_shown_with_orders_and_steps(api: Api, actor: dict[str, str]) -> None:
    publish(api)
    save_execution(api.parts.control, execution("d1"), lease_of(api))
    assert api.client.post("/api/v1/decisions/d1/approve", json={"why": "go"}, headers=actor).status_code == 202
    found = api.get("/api/v1/decisions/d1").json()
    assert [(order["kind"], order["who"], order["why"]) for order in found["orders"]] == [("approve", "ada", "go")]
    assert found["execution"]["steps"][0]["act"] == "isolate"
    (listed,) = api.get("/api/v1/decisions", {"job": "train"}).json()["items"]
    assert (listed["id"], listed["execution"]) == ("d1", "executing")


@pytest.mark.parametrize("kind", ["approve", "reject", "undo"])
def test_word_of_a_person_is_kept_with_who_said_it(api: Api, actor: dict[str, str], kind: str) -> None:
    publish(api)
    answer = api.client.post(f"/api/v1/decisions/d1/{kind}", json={"why": "I know"}, headers=actor)
    assert (answer.status_code, answer.json()["who"]) == (202, "ada")
    assert [(order.kind, order.who) for order in list_orders(api.parts.control, "d1")] == [(kind, "ada")]
    assert list_audit(api.parts.control, 1)[0].what == f"{kind}_decision"


@pytest.mark.parametrize("scope", ["read", "ingest"])
def test_only_who_may_act_acts(api: Api, actor: dict[str, str], scope: str) -> None:
    publish(api)
    token = api.make_token("ingest", "h0") if scope == "ingest" else api.make_token("read")
    check_problem(api.client.post("/api/v1/decisions/d1/undo", json={}, headers=bearer(token)), 403, "wrong-scope")
    check_problem(api.client.post("/api/v1/decisions/d1/undo", json={}), 401, "no-token")
    assert list_orders(api.parts.control, "d1") == []


def test_expired_decision_is_not_approved_but_undone(api: Api, actor: dict[str, str]) -> None:
    publish(api, lasts_s=-1.0)
    refused = api.client.post("/api/v1/decisions/d1/approve", json={}, headers=actor)
    check_problem(refused, 400, "bad-input")
    assert "has expired" in refused.json()["detail"]
    assert api.client.post("/api/v1/decisions/d1/undo", json={}, headers=actor).status_code == 202


def test_decision_to_do_nothing_has_nothing_to_approve(api: Api, actor: dict[str, str]) -> None:
    publish(api, action="none")
    check_problem(api.client.post("/api/v1/decisions/d1/approve", json={}, headers=actor), 400, "bad-input")


def test_each_part_of_a_plan_is_approved_by_itself_also_when_the_incident_is_over(
    api: Api, actor: dict[str, str]
) -> None:
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


def test_unknown_decision_gets_a_sentence(api: Api, actor: dict[str, str]) -> None:
    check_problem(api.get("/api/v1/decisions/d9"), 404, "not-found")
    check_problem(api.client.post("/api/v1/decisions/d9/undo", json={}, headers=actor), 404, "not-found")


def test_confirmed_outcomes_make_the_scorecard(api: Api, actor: dict[str, str]) -> None:
    publish(api)
    told = {"was_right": False, "part": "gpu:h3/0", "why": "the GPU was hot"}
    answer = api.client.put("/api/v1/incidents/i1/outcome", json=told, headers=actor)
    assert answer.json()["who"] == "ada"
    card = api.get("/api/v1/scorecard").json()
    assert (card["advised"], card["wrong"]) == (1, 1)


def isolate(api: Api, component: str = "nic:h3/eth1", **changes: object) -> None:
    publish(api)
    save_isolated(api.parts.control, isolated(component=component, **changes), lease_of(api))


@pytest.mark.parametrize("kind", ["test", "return", "rma", "repaired"])
def test_word_on_an_isolated_node_is_kept_with_who_said_it(api: Api, actor: dict[str, str], kind: str) -> None:
    isolate(api)
    answer = api.client.post(f"/api/v1/isolated/h3/{kind}", json={"why": "I know"}, headers=actor)
    assert (answer.status_code, answer.json()["who"], answer.json()["decision"]) == (202, "ada", "d1")
    line = list_audit(api.parts.control, 1)[0]
    assert (line.who, line.what, line.subject, line.why) == ("ada", f"{kind}_node", "h3", "I know")
    (item,) = api.get("/api/v1/isolated").json()["items"]
    assert [(each["kind"], each["who"], each["why"]) for each in item["orders"]] == [(kind, "ada", "I know")]


def test_part_that_is_sent_back_is_named_by_whoever_sent_it(api: Api, actor: dict[str, str]) -> None:
    isolate(api)
    told = {"part": {"serial": "132", "ticket": "RMA-7"}}
    given = api.client.post("/api/v1/isolated/h3/rma", json=told, headers=actor).json()
    assert given["part"] == {"uuid": None, "serial": "132", "ticket": "RMA-7"}


def test_gpu_that_is_sent_back_is_named_by_the_uuid_that_telemetry_knows(api: Api, actor: dict[str, str]) -> None:
    unknown: dict[str, Any] = dict.fromkeys(GpuHealth.__dataclass_fields__)  # Any: most are not read here
    told = unknown | {"host": "h3", "ts_ns": T0, "throttle": ""}
    seen = rows(*(GpuHealth(**(told | {"gpu": index, "gpu_uuid": f"GPU-{index}"})) for index in (0, 1)))
    api.parts.store.insert(TABLE_BY_NAME["gpu_health"], seen, "gpus")
    isolate(api, component="gpu:h3/1")
    given = api.client.post("/api/v1/isolated/h3/rma", json={}, headers=actor).json()
    assert given["part"]["uuid"] == "GPU-1"
    named = {"part": {"uuid": "GPU-9"}}
    assert api.client.post("/api/v1/isolated/h3/rma", json=named, headers=actor).json()["part"]["uuid"] == "GPU-9"


def test_word_on_a_node_that_makes_no_sense_is_refused(api: Api, actor: dict[str, str]) -> None:
    isolate(api, state="rma")
    refused = api.client.post("/api/v1/isolated/h3/test", json={}, headers=actor)
    assert check_problem(refused, 400, "bad-input").startswith("h3 was sent back")
    check_problem(api.client.post("/api/v1/isolated/h9/test", json={}, headers=actor), 404, "not-found")
    assert api.client.post("/api/v1/isolated/h3/burn", json={}, headers=actor).status_code == 422
    reader = bearer(api.make_token("read"))
    check_problem(api.client.post("/api/v1/isolated/h3/return", json={}, headers=reader), 403, "wrong-scope")


def test_isolated_nodes_and_downtime_are_listed(api: Api, actor: dict[str, str]) -> None:
    publish(api)
    lease = lease_of(api)
    save_isolated(api.parts.control, isolated(), lease)
    assert [each["node"] for each in api.get("/api/v1/isolated").json()["items"]] == ["h3"]
    assert api.get("/api/v1/downtime").json() == {"items": []}
