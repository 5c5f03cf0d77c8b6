"""Who gets in where: each route, those to come too, by each scope and by none; every change is in the audit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.auth import SESSION_COOKIE
from api.middleware import SECURITY_HEADERS
from lockstep.alerts import AlertSettings
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.decisions import save_decisions, save_isolated
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.policies import policy_of
from lockstep.state.tokens import Scope, create_token, revoke_token
from lockstep.store.store import Store
from tests.api.alerts.build import SECRET, make_notification
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import AwayStore
from tests.api.routes.test_captures import check_here, store_job
from tests.api.rules import BY_HAND, OPEN, Rule, mounts_of, rules_of
from tests.builders import T0
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated

SCOPES: tuple[Scope, ...] = ("read", "act", "admin", "ingest", "join")
LEAVE = ("POST", "/api/v1/hosts/leave")  # ends the token that asks
HOST = "x"  # stands in every path where a name is asked for
DOING = {"reading", "acting", "administering", "sending telemetry", "letting hosts join"}


@pytest.fixture(scope="module")
def rules(shared_api: Api) -> list[Rule]:
    return rules_of(shared_api.parts)


@pytest.fixture(scope="module")
def tokens(shared_api: Api) -> dict[Scope, str]:
    return {scope: shared_api.make_token(scope, HOST if scope == "ingest" else None) for scope in SCOPES}


def ask(client: httpx.Client, rule: Rule, headers: dict[str, str] | None = None) -> httpx.Response:
    """Return the answer; of one without an end no more than its head."""
    with client.stream(rule.method, rule.url, headers=headers) as answer:
        if "event-stream" not in answer.headers.get("Content-Type", ""):
            answer.read()
        return answer


def test_every_route_has_exactly_one_rule_or_a_reason_to_have_none(rules: list[Rule], shared_api: Api) -> None:
    without = {rule.key for rule in rules if rule.scopes is None}
    assert without == set(OPEN), "give a new route one of Reader, Actor, Admin, Agent and Joiner"
    assert {rule.key for rule in rules if rule.guards != 1} == set(OPEN) | set(BY_HAND)
    assert mounts_of(shared_api.parts) == ["/static"]


def test_without_a_token_nothing_answers_but_what_is_open(shared_api: Api, rules: list[Rule]) -> None:
    answers = {rule.key: ask(shared_api.client, rule) for rule in rules if rule.key not in OPEN}
    assert {key for key, answer in answers.items() if answer.status_code != 401} == set()
    for answer in answers.values():
        assert check_problem(answer, 401, "no-token") == "this needs a token: send Authorization: Bearer <token>"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_right_scopes_open_a_route_and_wrong_ones_do_not(
    shared_api: Api, rules: list[Rule], tokens: dict[Scope, str]
) -> None:
    for rule in rules:
        if rule.scopes is None:
            continue
        for scope in rule.scopes:
            secret = shared_api.make_token(scope, HOST) if rule.key == LEAVE else tokens[scope]
            answer = ask(shared_api.client, rule, bearer(secret))
            assert answer.status_code not in (401, 403), f"{scope} is kept from {rule.key}: {answer.text}"
            assert answer.status_code < 500, f"{rule.key}: {answer.text}"
        for scope in set(SCOPES) - rule.scopes:
            sentence = check_problem(ask(shared_api.client, rule, bearer(tokens[scope])), 403, "wrong-scope")
            assert sentence in {f"a token of scope {scope} does not allow {doing}" for doing in DOING}, rule.key


def test_revoked_token_opens_nothing(shared_api: Api, rules: list[Rule]) -> None:
    secret = shared_api.make_token("admin")
    revoke_token(shared_api.parts.control, secret.split("_")[1], T0)
    for rule in rules:
        if rule.scopes is not None:
            check_problem(ask(shared_api.client, rule, bearer(secret)), 401, "unknown-token")


def test_open_reads_open_reads_on_this_machine_and_nothing_else(tmp_path: Path) -> None:
    settings = Settings(api=ApiSettings(open_reads=True))
    with running_api(tmp_path, AwayStore(), settings=settings) as api:
        for rule in rules_of(api.parts):
            if rule.scopes is None:
                continue
            answer = ask(api.client, rule)
            if "read" in rule.scopes:
                assert answer.status_code not in (401, 403), f"{rule.key}: {answer.text}"
            else:
                check_problem(answer, 401, "no-token")
        answer = api.client.get("/api/v1/incidents", headers={"Host": "rebound.example:8642"})
        assert "rebound.example" in check_problem(answer, 401, "other-host")
        assert api.client.get("/api/v1/incidents", headers={"Host": "localhost:8642"}).status_code == 200


def test_scheme_has_any_case_and_what_is_no_token_is_refused(shared_api: Api, tokens: dict[Scope, str]) -> None:
    sent = {"": 401, "Bearer": 401, "Basic YTpi": 401, "Bearer lks_": 401, "lks_0123456789abcdef_x": 401}
    for text, status in (sent | {f"bEARER {tokens['read']}": 200}).items():
        answer = shared_api.client.get("/api/v1/incidents", headers={"Authorization": text})
        assert answer.status_code == status
    answer = shared_api.client.get("/api/v1/incidents", headers={"Cookie": f"{SESSION_COOKIE}=made-up"})
    assert check_problem(answer, 401, "no-session") == "this session is over: log in again"


def test_agent_token_that_is_bound_to_no_host_sends_nothing(shared_api: Api) -> None:
    control = shared_api.parts.control
    secret = create_token(control, scope="ingest", host="h0", name="loose", now_ns=T0)
    with control.begin() as connection:
        connection.exec_driver_sql("UPDATE tokens SET host = NULL WHERE name = 'loose'")
    answer = shared_api.client.post("/api/v1/ingest", content=b"x", headers=bearer(secret))
    assert "is bound to no host" in check_problem(answer, 403, "wrong-scope")


@given(
    st.dictionaries(
        st.sampled_from(
            ["Authorization", "Cookie", "Host", "Origin", "Accept", "If-Match", "Idempotency-Key", "X-Request-Id"]
            + ["Last-Event-ID", "Content-Length", "Sec-Fetch-Site", "Forwarded", "X-Forwarded-For", "Content-Type"]
        ),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=60).map(
            lambda text: text.encode("latin-1").strip()
        ),
    ),
    st.sampled_from(["/api/v1/incidents", "/api/v1/tokens", "/", "/metrics"]),
)
def test_no_header_opens_a_door_or_breaks_the_server(shared_api: Api, headers: dict[str, bytes], path: str) -> None:
    sent = {name.encode(): value for name, value in headers.items() if name != "Content-Length"}
    answer = shared_api.client.get(path, headers=[*sent.items()])
    assert answer.status_code in (303, 400, 401), answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


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
    api: Api
    admin: dict[str, str]

    def send(self, method: str, path: str, **sent: object) -> httpx.Response:
        return self.api.client.request(method, path, headers=self.admin, **sent)  # type: ignore[arg-type]  # as httpx takes it

    def make_capture(self, _: str = "") -> httpx.Response:
        store_job(self.api, "audited", "audited-host", ended_s_ago=1_000)  # what is younger would look alive
        archive = self.api.get("/api/v1/jobs/audited/capture", {"since_s": 2_000}).content
        return self.send("POST", "/api/v1/captures?job=audited-copy", content=archive)

    def log_in(self, _: str = "") -> httpx.Response:
        token = self.admin["Authorization"].removeprefix("Bearer ")
        answer = self.api.client.post("/login", data={"token": token})
        self.api.client.cookies.clear()
        return answer


def change_policy(world: World, _: str) -> httpx.Response:
    world.admin["If-Match"] = world.api.get("/api/v1/policies/planner").headers["ETag"]
    policy = policy_of(world.api.parts.settings.planner).model_dump(mode="json")
    return world.send("PUT", "/api/v1/policies/planner", json={"policy": policy})


def revoke(world: World, _: str) -> httpx.Response:
    made = world.send("POST", "/api/v1/tokens", json={"name": "x"}).json()
    return world.send("DELETE", f"/api/v1/tokens/{made['id']}")


def join(world: World, _: str) -> httpx.Response:
    headers = bearer(world.api.make_token("join"))
    return world.api.client.post("/api/v1/hosts/join", headers=headers, json={"host": "gpu-1"})


def leave(world: World, _: str) -> httpx.Response:
    return world.api.client.post("/api/v1/hosts/leave", headers=bearer(world.api.make_token("ingest", "gpu-2")))


def log_out(world: World, _: str) -> httpx.Response:
    cookie = f"{SESSION_COOKIE}={world.log_in().cookies[SESSION_COOKIE]}"
    return world.api.client.post("/logout", headers={"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})


def sends(path: str, **sent: object) -> Callable[["World", str], httpx.Response]:
    return lambda world, method: world.send(method, path, **sent)


ACTS: dict[tuple[str, str], Callable[[World, str], httpx.Response]] = {
    ("POST", "/api/v1/captures"): World.make_capture,
    ("DELETE", "/api/v1/captures/{job}"): sends("/api/v1/captures/audited-copy"),
    ("POST", "/api/v1/decisions/{decision_id}/{kind}"): sends("/api/v1/decisions/d1/reject", json={}),
    ("PUT", "/api/v1/incidents/{incident_id}/outcome"): sends(
        "/api/v1/incidents/i1/outcome", json={"was_right": True}
    ),
    ("POST", "/api/v1/hosts/join"): join,
    LEAVE: leave,
    ("POST", "/api/v1/isolated/{node}/{kind}"): sends("/api/v1/isolated/h3/test", json={}),
    ("PUT", "/api/v1/policies/{name}"): change_policy,
    ("POST", "/api/v1/tokens"): sends("/api/v1/tokens", json={"name": "x"}),
    ("DELETE", "/api/v1/tokens/{token_id}"): revoke,
    ("POST", "/api/v1/webhooks"): sends("/api/v1/webhooks", json=HOOK | {"name": "new"}),
    ("PATCH", "/api/v1/webhooks/{name}"): sends("/api/v1/webhooks/ops", json={"grades": ["isolate"]}),
    ("POST", "/api/v1/webhooks/{name}/enable"): sends("/api/v1/webhooks/ops/enable"),
    ("POST", "/api/v1/webhooks/{name}/test"): sends("/api/v1/webhooks/ops/test"),
    ("POST", "/api/v1/webhooks/{name}/deliveries/{event}/replay"): sends(
        f"/api/v1/webhooks/ops/deliveries/{make_notification().id}/replay"
    ),
    ("POST", "/settings/receivers/{name}/test"): sends("/settings/receivers/ops/test"),
    ("DELETE", "/api/v1/webhooks/{name}"): sends("/api/v1/webhooks/ops"),
    ("POST", "/incidents/{incident_id}/orders"): sends(
        "/incidents/i1/orders", data={"kind": "reject", "decision": "d1"}
    ),
    ("POST", "/incidents/{incident_id}/outcome"): sends("/incidents/i1/outcome", data={"was_right": "true"}),
    ("POST", "/login"): World.log_in,
    ("POST", "/logout"): log_out,
}  # how each is done so that it succeeds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("audited")
    settings = Settings(state_dir=folder, alerts=AlertSettings(allow=("127.0.0.1/32",)))
    with running_api(folder, shared_store, settings=settings) as api, pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.captures.check_capture", check_here)
        made = World(api, bearer(api.make_token("admin")))
        control, now_ns = api.parts.control, api.parts.clock.now_ns()
        save_incidents(control, [incident("i1")], None)
        save_decisions(control, [decision("d1", created_ns=now_ns)], None)
        save_isolated(control, isolated(since_ns=now_ns, changed_ns=now_ns), api.lease("planner"))
        assert made.send("POST", "/api/v1/webhooks", json=HOOK).status_code == 201
        waiting = Outgoing("ops", make_notification(), replaces=False, is_end=False)
        save_round(control, api.lease("alerts"), [waiting], [])
        yield made


def test_every_change_is_tried_here_or_not_audited_and_a_refused_one_writes_nothing(world: World) -> None:
    changes = {rule.key for rule in rules_of(world.api.parts) if rule.method not in ("GET", "HEAD")}
    assert changes == set(ACTS) | set(NOT_AUDITED)
    assert not set(ACTS) & set(NOT_AUDITED)
    reader = bearer(world.api.make_token("read"))
    newest = list_audit(world.api.parts.control, 1)[0].id
    for rule in rules_of(world.api.parts):
        if rule.key in ACTS and rule.scopes is not None:
            assert world.api.client.request(rule.method, rule.url, headers=reader).status_code == 403
    assert list_audit(world.api.parts.control, 1)[0].id == newest


@pytest.mark.parametrize(("method", "path"), ACTS)
def test_change_writes_who_did_it(world: World, method: str, path: str) -> None:
    before = list_audit(world.api.parts.control, 1)[0].id
    answer = ACTS[method, path](world, method)
    assert answer.status_code < 400, answer.text
    line = list_audit(world.api.parts.control, 1)[0]
    assert line.id > before, f"{method} {path} left no line in the audit"
    assert line.who == "test", "the name of the administrator's token"
    assert line.subject
