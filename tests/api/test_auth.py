"""Who gets in where: each route, those to come too, by each scope, by none, and by what only looks like one."""

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.auth import SESSION_COOKIE
from api.middleware import SECURITY_HEADERS
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.tokens import Scope, create_token, revoke_token
from lockstep.store.store import Store
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.rules import BY_HAND, OPEN, Rule, mounts_of, rules_of
from tests.builders import T0

SCOPES: tuple[Scope, ...] = ("read", "act", "admin", "ingest")
HOST = "x"  # stands in every path where a name is asked for
DOING = {"reading", "acting", "administering", "sending telemetry"}


@pytest.fixture(scope="module")
def open_api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    with running_api(
        tmp_path_factory.mktemp("open"), shared_store, settings=Settings(api=ApiSettings(open_reads=True))
    ) as running:
        yield running


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


def test_every_route_has_exactly_one_rule_or_a_reason_to_have_none(rules: list[Rule]) -> None:
    without = {rule.key for rule in rules if rule.scopes is None}
    assert without == set(OPEN), "give a new route one of Reader, Actor, Admin and Agent"
    assert {rule.key for rule in rules if rule.guards != 1} == set(OPEN) | set(BY_HAND)


def test_only_static_files_are_served_without_routes(shared_api: Api) -> None:
    assert mounts_of(shared_api.parts) == ["/static"]


def test_without_a_token_nothing_answers_but_what_is_open(shared_api: Api, rules: list[Rule]) -> None:
    answers = {rule.key: ask(shared_api.client, rule) for rule in rules if rule.key not in OPEN}
    assert {key for key, answer in answers.items() if answer.status_code != 401} == set()
    for answer in answers.values():
        assert check_problem(answer, 401, "no-token") == "this needs a token: send Authorization: Bearer <token>"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


@pytest.mark.parametrize("scope", SCOPES)
def test_each_scope_opens_its_own_routes_and_no_other(
    shared_api: Api, rules: list[Rule], tokens: dict[Scope, str], scope: Scope
) -> None:
    for rule in rules:
        if rule.scopes is None:
            continue
        answer = ask(shared_api.client, rule, bearer(tokens[scope]))
        if scope in rule.scopes:
            assert answer.status_code not in (401, 403), f"{scope} is kept from {rule.key}: {answer.text}"
            assert answer.status_code < 500, f"{rule.key}: {answer.text}"
        else:
            sentence = check_problem(answer, 403, "wrong-scope")
            assert sentence in {f"a token of scope {scope} does not allow {doing}" for doing in DOING}, rule.key


def test_revoked_token_opens_nothing(shared_api: Api, rules: list[Rule]) -> None:
    secret = shared_api.make_token("admin")
    revoke_token(shared_api.parts.control, secret.split("_")[1], T0)
    for rule in rules:
        if rule.scopes is not None:
            check_problem(ask(shared_api.client, rule, bearer(secret)), 401, "unknown-token")


def test_open_reads_open_reads_and_nothing_else(open_api: Api) -> None:
    for rule in rules_of(open_api.parts):
        if rule.scopes is None:
            continue
        answer = ask(open_api.client, rule)
        if "read" in rule.scopes:
            assert answer.status_code not in (401, 403), f"{rule.key}: {answer.text}"
        else:
            check_problem(answer, 401, "no-token")


def test_open_reads_on_loopback_are_for_this_machine_under_its_own_name(open_api: Api) -> None:
    answer = open_api.client.get("/api/v1/incidents", headers={"Host": "rebound.example:8642"})
    assert "rebound.example" in check_problem(answer, 401, "other-host")
    assert open_api.client.get("/api/v1/incidents", headers={"Host": "localhost:8642"}).status_code == 200


def test_scheme_may_be_written_in_any_case(shared_api: Api, tokens: dict[Scope, str]) -> None:
    answer = shared_api.client.get("/api/v1/incidents", headers={"Authorization": f"bEARER {tokens['read']}"})
    assert answer.status_code == 200


def test_agent_token_that_is_bound_to_no_host_sends_nothing(shared_api: Api) -> None:
    control = shared_api.parts.control
    secret = create_token(control, scope="ingest", host="h0", name="loose", now_ns=T0)
    with control.begin() as connection:
        connection.exec_driver_sql("UPDATE tokens SET host = NULL WHERE name = 'loose'")
    answer = shared_api.client.post("/api/v1/ingest", content=b"x", headers=bearer(secret))
    assert "is bound to no host" in check_problem(answer, 403, "wrong-scope")


@pytest.mark.parametrize("sent", ["", "Bearer", "Basic YTpi", "Bearer lks_", "lks_0123456789abcdef_x"])
def test_header_that_is_no_token_is_refused(shared_api: Api, sent: str) -> None:
    answer = shared_api.client.get("/api/v1/incidents", headers={"Authorization": sent})
    assert answer.status_code == 401


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


def test_made_up_session_opens_nothing(shared_api: Api) -> None:
    answer = shared_api.client.get("/api/v1/incidents", headers={"Cookie": f"{SESSION_COOKIE}=made-up"})
    assert check_problem(answer, 401, "no-session") == "this session is over: log in again"
