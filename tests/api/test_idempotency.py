"""An act that is sent again is done once, and gets the same answer; a key means nothing to anybody else."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from api.auth import SESSION_COOKIE
from lockstep.clock import NS_PER_S
from lockstep.state.idempotency import KEPT_NS, STUCK_NS
from lockstep.state.tokens import list_tokens, revoke_token
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.waiting import HastyClock, eventually

DETAIL_REQUEST = {"name": "for a reader", "scope": "read"}


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("acts"), FakeStore()) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> str:
    return api.make_token("admin")


def create_token_here(api: Api, admin: str, key: str | None = "k-1", **detail_request: object) -> httpx.Response:
    headers = bearer(admin) | ({"Idempotency-Key": key} if key is not None else {})
    return api.client.post("/api/v1/tokens", json={**DETAIL_REQUEST, **detail_request}, headers=headers)


def made(api: Api) -> int:
    return sum(token.name == DETAIL_REQUEST["name"] for token in list_tokens(api.parts.control))


def test_repeated_act_is_done_once_and_answered_alike(api: Api, admin: str) -> None:
    first, again = create_token_here(api, admin), create_token_here(api, admin)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content, "the secret too, which nothing else can show again"
    assert (first.headers.get("Idempotency-Replayed"), again.headers["Idempotency-Replayed"]) == (None, "true")
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert again.headers["X-Request-Id"] != first.headers["X-Request-Id"]
    assert made(api) == 1


def test_without_a_key_each_is_an_act(api: Api, admin: str) -> None:
    create_token_here(api, admin, key=None)
    create_token_here(api, admin, key=None)
    assert made(api) == 2


def test_key_of_another_request_is_refused(api: Api, admin: str) -> None:
    create_token_here(api, admin)
    answer = create_token_here(api, admin, scope="act")
    assert check_problem(answer, 422, "key-reused") == "this Idempotency-Key was used for another request"
    token = list_tokens(api.parts.control)[0].id
    headers = bearer(admin) | {"Idempotency-Key": "k-1"}
    check_problem(api.client.delete(f"/api/v1/tokens/{token}", headers=headers), 422, "key-reused")


def test_same_key_of_somebody_else_is_another_act(api: Api, admin: str) -> None:
    first, other = create_token_here(api, admin), create_token_here(api, api.make_token("admin"))
    assert first.json()["secret"] != other.json()["secret"]
    assert made(api) == 2


def test_who_is_refused_gets_no_kept_answer(api: Api, admin: str) -> None:
    create_token_here(api, admin)
    revoke_token(api.parts.control, admin.split("_")[1], 1)
    check_problem(create_token_here(api, admin), 401, "unknown-token")
    check_problem(create_token_here(api, api.make_token("read")), 403, "wrong-scope")
    assert made(api) == 1


def test_mistake_is_answered_alike_and_not_tried_again(api: Api, admin: str) -> None:
    first, again = create_token_here(api, admin, scope="ingest"), create_token_here(api, admin, scope="ingest")
    check_problem(first, 400, "bad-input")
    assert again.content == first.content
    assert again.headers["Idempotency-Replayed"] == "true"


def test_failure_of_ours_may_be_tried_again_with_the_same_key(
    api: Api, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("api.routes.admin.create_token", fail)
        patch.setattr("api.problems._log.error", lambda *_, **__: None)
        check_problem(create_token_here(api, admin), 500, "failed")
    assert create_token_here(api, admin).status_code == 201


def test_two_at_the_same_time_are_one_act(api: Api, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> str:
        begun.set()
        assert go_on.wait(60)
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


def test_answers_are_kept_for_a_day(api: Api, admin: str) -> None:
    clock = api.parts.clock
    assert isinstance(clock, HastyClock)
    create_token_here(api, admin)
    clock.skip(KEPT_NS / NS_PER_S - 3600)
    assert create_token_here(api, admin).headers["Idempotency-Replayed"] == "true"
    clock.skip(3600)
    assert "Idempotency-Replayed" not in create_token_here(api, admin).headers
    assert STUCK_NS < KEPT_NS


def test_stolen_database_shows_no_secret(api: Api, admin: str) -> None:
    secret = create_token_here(api, admin).json()["secret"]
    with api.parts.control.read() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM idempotency").fetchall()
    assert len(rows) == 1
    assert secret.split("_", 2)[2] not in str(rows)
    assert DETAIL_REQUEST["name"] not in str(rows)
    assert "k-1" not in str(rows)


def test_session_s_acts_are_done_once_too(api: Api, admin: str) -> None:
    login = api.client.post("/login", data={"token": admin})
    headers = {"Cookie": f"{SESSION_COOKIE}={login.cookies[SESSION_COOKIE]}", "Sec-Fetch-Site": "same-origin"}
    api.client.cookies.clear()
    first, again = (
        api.client.post("/api/v1/tokens", json=DETAIL_REQUEST, headers=headers | {"Idempotency-Key": "s-1"})
        for _ in range(2)
    )
    assert first.status_code == 201
    assert again.content == first.content
    # The same person by their token: the act is known as theirs, its answer opens only for the session.
    check_problem(create_token_here(api, admin, key="s-1"), 409, "sealed")
    assert made(api) == 1


@pytest.mark.parametrize("key", ["a b", "x" * 256, "tab\there"])
def test_key_that_is_none_is_refused(api: Api, admin: str, key: str) -> None:
    assert "1 to 255 printable characters" in check_problem(create_token_here(api, admin, key=key), 400, "bad-key")


def test_every_act_of_the_api_knows_the_key(api: Api, admin: str) -> None:
    """A repeat is answered from memory whatever the act is; 404 is an answer like any other."""
    for act in ("approve", "reject", "undo"):
        headers = bearer(admin) | {"Idempotency-Key": f"{act}-1"}
        for expected in (None, "true"):
            answer = api.client.post(f"/api/v1/decisions/none/{act}", json={}, headers=headers)
            check_problem(answer, 404, "not-found")
            assert answer.headers.get("Idempotency-Replayed") == expected
