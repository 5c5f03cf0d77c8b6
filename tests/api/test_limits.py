"""One caller cannot take everybody's turn, no body is too large, and an act that is sent again is done once."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Scope

from api.auth import SESSION_COOKIE
from api.limits import REFUSED_PER_S, Buckets, most_bytes
from api.middleware import Idempotency
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.config import Settings
from lockstep.errors import NotAllowed
from lockstep.sections import ApiSettings
from lockstep.state.idempotency import KEPT_NS, STUCK_NS
from lockstep.state.tokens import begin_session, find_token, list_tokens, revoke_token
from tests.api.build import Api, batch_headers, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.rules import rules_of
from tests.waiting import LIMIT_S, HastyClock, eventually


class StillClock(ManualClock):
    """Stands still also for threads that wait, which do so in real time."""

    def __init__(self) -> None:
        super().__init__(10**18)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Api]:
    """An app for which no time passes, with three requests and two batches a second for each caller."""
    limits = ApiSettings(requests_per_s=1.5, batches_per_s=1, max_body_kb=64)
    with running_api(tmp_path, FakeStore(), settings=Settings(api=limits), clock=StillClock()) as running:
        yield running


def test_caller_that_asks_too_often_is_told_when_to_come_again_and_nobody_else_is(still: Api) -> None:
    greedy, modest = bearer(still.make_token("read")), bearer(still.make_token("read"))
    asked = [still.client.get("/api/v1/incidents", headers=greedy) for _ in range(4)]
    assert [answer.status_code for answer in asked] == [200, 200, 200, 429]
    assert check_problem(asked[3], 429, "too-many-requests") == "too many requests: ask again in 0.7 s"
    assert asked[3].headers["Retry-After"] == "1"
    assert asked[3].headers["X-Content-Type-Options"] == "nosniff"
    assert still.client.get("/api/v1/incidents", headers=modest).status_code == 200
    agent = batch_headers(still.make_token("ingest", "h0"))
    statuses = [still.client.post("/api/v1/ingest", content=b"", headers=agent).status_code for _ in range(3)]
    assert statuses == [400, 400, 429], "batches have a bound of their own"
    assert {still.client.get("/healthz").status_code for _ in range(10)} == {200}
    clock = still.parts.clock
    assert isinstance(clock, StillClock)
    clock.advance(1)
    assert still.client.get("/api/v1/incidents", headers=greedy).status_code == 200


def test_good_token_and_session_are_let_in_from_an_address_whose_made_up_ones_lock_it_out(still: Api) -> None:
    seen, reader = (bearer(still.make_token("read")) for _ in range(2))
    agent = batch_headers(still.make_token("ingest", "h0"))
    token = find_token(still.parts.control, still.make_token("read"))
    assert token is not None
    now_ns = still.parts.clock.now_ns()
    cookie = begin_session(still.parts.control, token, now_ns, now_ns + NS_PER_S)
    assert still.client.get("/api/v1/incidents", headers=seen).status_code == 200
    fill_with_made_up_tokens(still)
    for headers in (seen, reader, {"Cookie": f"lockstep_session={cookie}"}):
        assert still.client.get("/api/v1/incidents", headers=headers).status_code == 200
    assert still.client.post("/api/v1/ingest", content=b"", headers=agent).status_code == 400, "it was looked at"
    for headers in (bearer(still.make_token("read")[:-1] + "!"), {"Cookie": "lockstep_session=made-up"}):
        check_problem(still.client.get("/api/v1/incidents", headers=headers), 429, "too-many-requests")


def fill_with_made_up_tokens(api: Api) -> None:
    made_up = [bearer(f"lks_{number:016x}_{'A' * 43}") for number in range(110)]
    tries = [api.client.get("/api/v1/incidents", headers=each).status_code for each in made_up]
    assert tries == [401] * int(REFUSED_PER_S * 20) + [429] * 10


def test_person_logs_in_from_an_address_that_is_locked_out(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore(), clock=StillClock()) as api:
        token = api.make_token("read")
        fill_with_made_up_tokens(api)
        assert api.client.get("/login").status_code == 200
        assert api.client.get("/", headers={"Accept": "text/html"}).status_code == 303
        assert api.client.post("/login", data={"token": "lks_guessed"}).status_code == 429
        assert api.client.post("/login", data={"token": token}).status_code == 303


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ApiSettings(requests_per_s=1, open_reads=True), [200, 200, 429]),  # by address, whatever token is made up
        (ApiSettings(requests_per_s=0, open_reads=True), [200] * 50),
    ],
)
def test_open_reads_count_by_address_or_not(tmp_path: Path, limits: ApiSettings, expected: list[int]) -> None:
    with running_api(tmp_path, FakeStore(), settings=Settings(api=limits), clock=StillClock()) as api:
        asked = [api.client.get("/api/v1/incidents", headers=bearer(str(n))) for n in range(len(expected))]
    assert [answer.status_code for answer in asked] == expected


def test_body_that_is_too_large_is_refused_unread_or_as_it_comes(still: Api) -> None:
    admin = bearer(still.make_token("admin"))
    for content in (bytes(1 << 20), (bytes(1 << 13) for _ in range(16))):
        answer = still.client.put("/api/v1/policies/planner", content=content, headers=admin)
        assert check_problem(answer, 413, "too-large") == "a body here may have 64 KiB"


def begin_request(api: Api, path: str, *headers: str) -> str:
    """Send headers and a piece of a body that never comes, and return how the answer begins."""
    url = api.client.base_url
    lines = [f"POST {path} HTTP/1.1", "Host: h", "Content-Length: 1000", *headers, "", "begun"]
    with socket.create_connection((url.host, url.port), timeout=LIMIT_S) as slow:
        slow.sendall("\r\n".join(lines).encode())
        return slow.recv(12).decode()


def test_body_that_does_not_come_in_time_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.limits._BODY_S", 0.1)
    token = api.make_token("ingest", "x")
    batch = [f"{name}: {value}" for name, value in batch_headers(token, agent="x").items()]
    for path, headers in (("/login", []), ("/api/v1/ingest", batch)):
        assert begin_request(api, path, *headers) == "HTTP/1.1 408"


def test_body_with_a_key_is_not_read_before_its_sender_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise NotAllowed("nobody knows this token", slug="unknown-token", status=401)

    async def receive() -> NoReturn:
        raise AssertionError("read")

    async def send(_: object) -> None: ...

    met = []

    async def route(scope: Scope, *_: object) -> None:
        met.append(scope["path"])

    monkeypatch.setattr("api.middleware.find_caller", refuse)
    scope = {"type": "http", "method": "POST", "path": "/api/v1/tokens", "headers": [(b"idempotency-key", b"k")]}
    asyncio.run(Idempotency(route)(scope, receive, send))
    assert met == ["/api/v1/tokens"], "which refuses them"


def test_no_route_takes_a_body_without_a_bound(api: Api) -> None:
    """Those who read as they like say by themselves what is too much; all others are cut off."""
    expected = {"/api/v1/policies/planner": 1 << 20, "/api/v1/captures": 512 << 20, "/login": 16 << 10}
    assert {path: most_bytes(path, Settings()) for path in expected} == expected
    tokens = {scope: api.make_token(scope, "x" if scope == "ingest" else None) for scope in ("admin", "ingest")}
    for rule in rules_of(api.parts):
        if rule.method in ("GET", "HEAD") or rule.path == "/api/v1/captures":
            continue
        headers = batch_headers(tokens["ingest" if rule.is_for_agents else "admin"], agent="x")
        answer = api.client.request(rule.method, rule.url, content=bytes(9 << 20), headers=headers)
        assert answer.status_code == 413, f"{rule.key}: {answer.status_code} {answer.text}"


@given(
    st.floats(0.1, 50, allow_nan=False),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2, allow_nan=False)), max_size=80),
)
def test_nobody_gets_more_than_the_burst_and_what_time_brings(per_s: float, asked: list[tuple[str, float]]) -> None:
    buckets, now_ns = Buckets(per_s), 0
    taken = dict.fromkeys("abc", 0)
    for caller, pause_s in asked:
        now_ns += int(pause_s * NS_PER_S)
        wait_s = buckets.take(caller, now_ns)
        taken[caller] += wait_s == 0
        assert wait_s <= 1 / per_s
        if wait_s:
            assert buckets.is_empty(caller, now_ns)
    most = max(1.0, per_s * 2) + per_s * now_ns / NS_PER_S
    assert all(count <= most + 1e-6 for count in taken.values())


def test_callers_are_remembered_up_to_a_bound() -> None:
    buckets = Buckets(1, most=10)
    for number in range(100):
        buckets.take(str(number), 0)
    assert len(buckets) == 10
    assert "99" in buckets
    assert "0" not in buckets


REQUESTED = {"name": "for a reader", "scope": "read"}


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("acts"), FakeStore()) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> str:
    return api.make_token("admin")


def create_token_here(api: Api, admin: str, key: str | None = "k-1", **changes: object) -> httpx.Response:
    headers = bearer(admin) | ({"Idempotency-Key": key} if key is not None else {})
    return api.client.post("/api/v1/tokens", json={**REQUESTED, **changes}, headers=headers)


def made(api: Api) -> int:
    return sum(token.name == REQUESTED["name"] for token in list_tokens(api.parts.control))


def test_act_is_done_once_for_each_who_may_and_a_key_and_answered_alike(api: Api, admin: str) -> None:
    first, again = create_token_here(api, admin), create_token_here(api, admin)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content, "the secret too, which nothing else can show again"
    assert (first.headers.get("Idempotency-Replayed"), again.headers["Idempotency-Replayed"]) == (None, "true")
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert again.headers["X-Request-Id"] != first.headers["X-Request-Id"]
    assert made(api) == 1
    create_token_here(api, admin, key=None)
    create_token_here(api, admin, key=None)
    assert made(api) == 3
    other = create_token_here(api, api.make_token("admin"))
    assert first.json()["secret"] != other.json()["secret"]
    revoke_token(api.parts.control, admin.split("_")[1], 1)
    check_problem(create_token_here(api, admin), 401, "unknown-token")
    check_problem(create_token_here(api, api.make_token("read")), 403, "wrong-scope")
    assert made(api) == 4


def test_mistake_is_answered_alike_and_our_failure_tried_again(
    api: Api, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ZeroDivisionError

    for act in ("approve", "reject", "undo"):
        headers = bearer(admin) | {"Idempotency-Key": f"{act}-1"}
        for expected in (None, "true"):
            answer = api.client.post(f"/api/v1/decisions/none/{act}", json={}, headers=headers)
            check_problem(answer, 404, "not-found")
            assert answer.headers.get("Idempotency-Replayed") == expected
    first, again = (create_token_here(api, admin, key="mistake", scope="ingest") for _ in range(2))
    check_problem(first, 400, "bad-input")
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    with monkeypatch.context() as patch:
        patch.setattr("api.routes.admin.create_token", fail)
        patch.setattr("api.problems._log.error", lambda *_, **__: None)
        check_problem(create_token_here(api, admin), 500, "failed")
    assert create_token_here(api, admin).status_code == 201


def test_two_at_the_same_time_are_one_act(api: Api, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> str:
        begun.set()
        assert go_on.wait(LIMIT_S)
        return "lks_0123456789abcdef_" + "A" * 43

    monkeypatch.setattr("api.routes.admin.create_token", slow)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(create_token_here, api, admin)
        eventually(begun.is_set)
        answer = create_token_here(api, admin)
        go_on.set()
        assert check_problem(answer, 409, "in-progress") == "the first request with this key is still at work"
        assert answer.headers["Retry-After"] == "1"
        assert first.result().status_code == 201
    assert create_token_here(api, admin).content == first.result().content


def test_answers_are_kept_for_a_day_and_a_stolen_database_shows_no_secret(api: Api, admin: str) -> None:
    secret = create_token_here(api, admin).json()["secret"]
    with api.parts.control.read() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM idempotency").fetchall()
    assert len(rows) == 1
    assert secret.split("_", 2)[2] not in str(rows)
    assert REQUESTED["name"] not in str(rows)
    assert "k-1" not in str(rows)
    clock = api.parts.clock
    assert isinstance(clock, HastyClock)
    create_token_here(api, admin)
    clock.skip(KEPT_NS / NS_PER_S - 3600)
    assert create_token_here(api, admin).headers["Idempotency-Replayed"] == "true"
    clock.skip(3600)
    assert "Idempotency-Replayed" not in create_token_here(api, admin).headers
    assert STUCK_NS < KEPT_NS


def test_session_s_acts_are_done_once_too(api: Api, admin: str) -> None:
    login = api.client.post("/login", data={"token": admin})
    headers = {"Cookie": f"{SESSION_COOKIE}={login.cookies[SESSION_COOKIE]}", "Sec-Fetch-Site": "same-origin"}
    headers["Idempotency-Key"] = "s-1"
    api.client.cookies.clear()
    first, again = (api.client.post("/api/v1/tokens", json=REQUESTED, headers=headers) for _ in range(2))
    assert first.status_code == 201
    assert again.content == first.content
    # The same person by their token: the act is known as theirs, its answer opens only for the session.
    check_problem(create_token_here(api, admin, key="s-1"), 409, "sealed")
    assert made(api) == 1


def test_key_of_another_request_and_one_that_is_none_are_refused(api: Api, admin: str) -> None:
    create_token_here(api, admin)
    answer = create_token_here(api, admin, scope="act")
    assert check_problem(answer, 422, "key-reused") == "this Idempotency-Key was used for another request"
    token = list_tokens(api.parts.control)[0].id
    headers = bearer(admin) | {"Idempotency-Key": "k-1"}
    check_problem(api.client.delete(f"/api/v1/tokens/{token}", headers=headers), 422, "key-reused")
    for key in ("a b", "x" * 256, "tab\there"):
        sentence = check_problem(create_token_here(api, admin, key=key), 400, "bad-key")
        assert "1 to 255 printable characters" in sentence
