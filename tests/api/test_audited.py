"""Every route that changes something writes into the audit who did it; a new route must be tried here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.auth import SESSION_COOKIE
from lockstep.alert_settings import AlertSettings
from lockstep.config import Settings
from lockstep.execution import Isolated
from lockstep.state.decisions import save_decisions, save_isolated
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, take_lease
from lockstep.state.policies import policy_of
from lockstep.store.store import Store
from tests.api.alerts.build import SECRET, make_notification
from tests.api.build import Api, bearer, running_api
from tests.api.routes.test_captures import store_job
from tests.api.rules import rules_of
from tests.lockstep.state.build import decision, incident

HOOK = {"name": "ops", "kind": "webhook", "url": "http://127.0.0.1:9/hook", "secrets": [SECRET]}

NOT_AUDITED = {
    ("POST", "/api/v1/ingest"): "telemetry, of which the gateway keeps a log",
    ("POST", "/api/v1/intake/alertmanager"): "telemetry of others",
    ("POST", "/api/v1/intake/gpud"): "telemetry of others",
    ("POST", "/api/v1/paths/hosts/{host}/count"): "telemetry of the path shim",
    ("POST", "/api/v1/captures/{job}/replay"): "reads a capture once more and changes nothing",
}


@dataclass(frozen=True)
class World:
    """An app in which there is one of everything, and an administrator."""

    api: Api
    admin: dict[str, str]

    def send(self, method: str, path: str, **sent: object) -> httpx.Response:
        return self.api.client.request(method, path, headers=self.admin, **sent)  # type: ignore[arg-type]  # as httpx takes it

    def lease(self, name: str) -> Lease:
        held = take_lease(self.api.parts.control, name, "test", 10**18, self.api.parts.clock.now_ns())
        assert held is not None
        return held

    def make_hook(self, name: str = "ops") -> None:
        assert self.send("POST", "/api/v1/webhooks", json=HOOK | {"name": name}).status_code in (201, 400)

    def make_capture(self) -> httpx.Response:
        store_job(self.api, "audited", "audited-host", ended_s_ago=1_000)  # what is younger would look alive
        archive = self.api.get("/api/v1/jobs/audited/capture", {"since_s": 2_000}).content
        return self.send("POST", "/api/v1/captures?job=audited-copy", content=archive)

    def log_in(self) -> httpx.Response:
        token = self.admin["Authorization"].removeprefix("Bearer ")
        answer = self.api.client.post("/login", data={"token": token})
        self.api.client.cookies.clear()
        return answer


def change_policy(world: World) -> httpx.Response:
    world.admin["If-Match"] = world.api.get("/api/v1/policies/planner").headers["ETag"]
    policy = policy_of(world.api.parts.settings.planner).model_dump(mode="json")
    return world.send("PUT", "/api/v1/policies/planner", json={"policy": policy})


def revoke(world: World) -> httpx.Response:
    made = world.send("POST", "/api/v1/tokens", json={"name": "x"}).json()
    return world.send("DELETE", f"/api/v1/tokens/{made['id']}")


def log_out(world: World) -> httpx.Response:
    cookie = f"{SESSION_COOKIE}={world.log_in().cookies[SESSION_COOKIE]}"
    return world.api.client.post("/logout", headers={"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})


def order_on_page(world: World) -> httpx.Response:
    return world.send("POST", "/incidents/i1/orders", data={"kind": "reject", "decision": "d1"})


# How each is done so that it succeeds.
ACTS: dict[tuple[str, str], Callable[[World], httpx.Response]] = {
    ("POST", "/api/v1/captures"): World.make_capture,
    ("DELETE", "/api/v1/captures/{job}"): lambda world: world.send("DELETE", "/api/v1/captures/audited-copy"),
    ("POST", "/api/v1/decisions/{decision_id}/{kind}"): lambda world: world.send(
        "POST", "/api/v1/decisions/d1/reject", json={}
    ),
    ("PUT", "/api/v1/incidents/{incident_id}/outcome"): lambda world: world.send(
        "PUT", "/api/v1/incidents/i1/outcome", json={"was_right": True}
    ),
    ("POST", "/api/v1/isolated/{node}/{kind}"): lambda world: world.send("POST", "/api/v1/isolated/h3/test", json={}),
    ("PUT", "/api/v1/policies/{name}"): change_policy,
    ("POST", "/api/v1/tokens"): lambda world: world.send("POST", "/api/v1/tokens", json={"name": "x"}),
    ("DELETE", "/api/v1/tokens/{token_id}"): revoke,
    ("POST", "/api/v1/webhooks"): lambda world: world.send("POST", "/api/v1/webhooks", json=HOOK | {"name": "new"}),
    ("PATCH", "/api/v1/webhooks/{name}"): lambda world: world.send(
        "PATCH", "/api/v1/webhooks/ops", json={"grades": ["isolate"]}
    ),
    ("POST", "/api/v1/webhooks/{name}/enable"): lambda world: world.send("POST", "/api/v1/webhooks/ops/enable"),
    ("POST", "/api/v1/webhooks/{name}/test"): lambda world: world.send("POST", "/api/v1/webhooks/ops/test"),
    ("POST", "/api/v1/webhooks/{name}/deliveries/{event}/replay"): lambda world: world.send(
        "POST", f"/api/v1/webhooks/ops/deliveries/{make_notification().id}/replay"
    ),
    ("POST", "/settings/receivers/{name}/test"): lambda world: world.send("POST", "/settings/receivers/ops/test"),
    ("DELETE", "/api/v1/webhooks/{name}"): lambda world: world.send("DELETE", "/api/v1/webhooks/ops"),
    ("POST", "/incidents/{incident_id}/orders"): order_on_page,
    ("POST", "/incidents/{incident_id}/outcome"): lambda world: world.send(
        "POST", "/incidents/i1/outcome", data={"was_right": "true"}
    ),
    ("POST", "/login"): World.log_in,
    ("POST", "/logout"): log_out,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("audited")
    settings = Settings(state_dir=folder, alerts=AlertSettings(allow=("127.0.0.1/32",)))
    with running_api(folder, shared_store, settings=settings) as api:
        made = World(api, bearer(api.make_token("admin")))
        control, now_ns = api.parts.control, api.parts.clock.now_ns()
        save_incidents(control, [incident("i1")], None)
        save_decisions(control, [decision("d1", created_ns=now_ns)], None)
        out = {"node": "h3", "component": "nic:h3/eth1", "decision": "d1", "job": "train", "reason": "slow"}
        isolated = Isolated.model_validate(out | {"state": "isolated", "since_ns": now_ns, "changed_ns": now_ns})
        save_isolated(control, isolated, made.lease("planner"))
        made.make_hook()
        save_round(
            control, made.lease("alerts"), [Outgoing("ops", make_notification(), replaces=False, is_end=False)], []
        )
        yield made


def test_every_change_is_tried_here_or_has_a_reason_not_to_be_audited(world: World) -> None:
    changes = {rule.key for rule in rules_of(world.api.parts) if rule.method not in ("GET", "HEAD")}
    assert changes == set(ACTS) | set(NOT_AUDITED)
    assert not set(ACTS) & set(NOT_AUDITED)


@pytest.mark.parametrize(("method", "path"), ACTS)
def test_change_writes_who_did_it(world: World, method: str, path: str) -> None:
    before = list_audit(world.api.parts.control, 1)[0].id
    answer = ACTS[method, path](world)
    assert answer.status_code < 400, answer.text
    line = list_audit(world.api.parts.control, 1)[0]
    assert line.id > before, f"{method} {path} left no line in the audit"
    assert line.who == "test", "the name of the administrator's token"
    assert line.subject


def test_refused_change_writes_nothing(world: World) -> None:
    reader = bearer(world.api.make_token("read"))
    newest = list_audit(world.api.parts.control, 1)[0].id
    for rule in rules_of(world.api.parts):
        if rule.key in ACTS and rule.scopes is not None:
            assert world.api.client.request(rule.method, rule.url, headers=reader).status_code == 403
    assert list_audit(world.api.parts.control, 1)[0].id == newest
