"""A browser logs in with a token and gets a cookie that stands for it: while it holds, and from our own pages."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.auth import SESSION_COOKIE
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.documents import list_audit
from lockstep.state.tokens import Scope, revoke_token
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.waiting import HastyClock

PAGE = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("sessions"), FakeStore()) as running:
        yield running


def log_in(api: Api, scope: Scope = "act", place: str = "/") -> httpx.Response:
    return api.client.post("/login", data={"token": api.make_token(scope), "next": place})


def session_of(answer: httpx.Response) -> dict[str, str]:
    """Return the header that a browser would send, and forget the cookie in the client, which all tests share."""
    secret = answer.cookies[SESSION_COOKIE]
    return {"Cookie": f"{SESSION_COOKIE}={secret}"}


@pytest.fixture(autouse=True)
def no_cookies(api: Api) -> Iterator[None]:
    yield
    api.client.cookies.clear()


def ours(api: Api) -> dict[str, str]:
    return {"Origin": str(api.client.base_url).rstrip("/")}


def test_session_reads_what_its_token_reads(api: Api) -> None:
    answer = log_in(api, place="/incidents?job=a")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/incidents?job=a")
    headers = session_of(answer)
    api.client.cookies.clear()
    assert api.client.get("/api/v1/incidents", headers=headers).status_code == 200


def test_cookie_is_kept_from_scripts_other_sites_and_other_paths_than_ours(api: Api) -> None:
    said = log_in(api).headers["Set-Cookie"]
    words = {word.strip().partition("=")[0].lower(): word.strip().partition("=")[2] for word in said.split(";")}
    assert words.keys() >= {"httponly", "samesite", "path", "max-age"}
    assert (words["samesite"], words["path"], words["max-age"]) == ("strict", "/", str(12 * 3600))
    assert "secure" not in words, "plain HTTP on loopback would lose it"


def test_cookie_holds_no_token(api: Api) -> None:
    token = api.make_token("read")
    answer = api.client.post("/login", data={"token": token})
    assert token.split("_", 2)[2] not in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("settings", [ApiSettings(tls_in_front=True)])
def test_cookie_never_travels_without_tls_where_there_is_tls(tmp_path: Path, settings: ApiSettings) -> None:
    with running_api(tmp_path, FakeStore(), settings=Settings(api=settings)) as tls:
        assert "; Secure" in log_in(tls).headers["Set-Cookie"]


def test_token_that_is_worth_nothing_is_told_on_the_page(api: Api) -> None:
    answer = api.client.post("/login", data={"token": "lks_nope"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert "this token is unknown or revoked" in answer.text
    assert "Set-Cookie" not in answer.headers


def test_collector_s_token_logs_nobody_in(api: Api) -> None:
    answer = api.client.post("/login", data={"token": api.make_token("ingest", "h0")})
    assert answer.status_code == 403
    assert "a token of scope ingest does not allow reading" in answer.text


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\nb"]
)
def test_login_leads_to_no_other_site(api: Api, place: str) -> None:
    assert log_in(api, place=place).headers["Location"] == "/"
    assert "evil.example" not in api.client.get("/login", params={"next": place}).text


def test_page_shows_where_it_leads_and_runs_nothing_of_it(api: Api) -> None:
    text = api.client.get("/login", params={"next": '/"><script>alert(1)</script>'}).text
    assert "<script>alert" not in text
    assert "/&#34;&gt;&lt;script&gt;" in text


def test_browser_without_a_session_is_led_to_the_login_and_back(api: Api) -> None:
    answer = api.client.get("/?job=a%20b", headers=PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=%2F%3Fjob%3Da%2520b")
    check_problem(api.client.get("/"), 401, "no-token")
    check_problem(api.client.get("/", headers=PAGE | bearer("lks_nope")), 401, "unknown-token")


def test_browser_with_a_session_that_is_over_is_led_to_the_login(api: Api) -> None:
    answer = api.client.get("/", headers=PAGE | {"Cookie": f"{SESSION_COOKIE}=old"})
    assert answer.status_code == 303


def test_act_of_a_session_needs_one_of_our_own_pages(api: Api) -> None:
    headers = session_of(log_in(api))
    api.client.cookies.clear()
    act = "/api/v1/decisions/none/approve"
    host = api.client.base_url.host
    foreign: list[dict[str, str]] = [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{host}:1"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"} | ours(api),
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ]
    for sent in foreign:
        answer = api.client.post(act, json={}, headers=headers | sent)
        assert check_problem(answer, 403, "other-origin") == "a session changes things only from our own pages", sent
    for sent in (ours(api), {"Sec-Fetch-Site": "same-origin"}):
        check_problem(api.client.post(act, json={}, headers=headers | sent), 404, "not-found")


def test_program_with_a_token_needs_no_origin(api: Api) -> None:
    answer = api.client.post("/api/v1/decisions/none/approve", json={}, headers=bearer(api.make_token("act")))
    check_problem(answer, 404, "not-found")


def test_foreign_page_logs_nobody_in(api: Api) -> None:
    answer = api.client.post(
        "/login", data={"token": api.make_token("read")}, headers={"Origin": "https://evil.example"}
    )
    check_problem(answer, 403, "other-origin")


def test_session_does_no_more_than_its_token(api: Api) -> None:
    headers = session_of(log_in(api, "read")) | ours(api)
    api.client.cookies.clear()
    answer = api.client.post("/api/v1/decisions/none/approve", json={}, headers=headers)
    check_problem(answer, 403, "wrong-scope")


def test_logout_ends_the_session_also_for_who_copied_the_cookie(api: Api) -> None:
    headers = session_of(log_in(api)) | ours(api)
    api.client.cookies.clear()
    answer = api.client.post("/logout", headers=headers)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert 'lockstep_session="";' in answer.headers["Set-Cookie"]
    check_problem(api.client.get("/api/v1/incidents", headers=headers), 401, "no-session")


def test_foreign_page_logs_nobody_out(api: Api) -> None:
    headers = session_of(log_in(api))
    api.client.cookies.clear()
    check_problem(api.client.post("/logout", headers=headers), 403, "other-origin")
    assert api.client.get("/api/v1/incidents", headers=headers).status_code == 200


def test_revoked_token_ends_its_sessions(api: Api) -> None:
    token = api.make_token("read")
    headers = session_of(api.client.post("/login", data={"token": token}))
    api.client.cookies.clear()
    revoke_token(api.parts.control, token.split("_")[1], 1)
    check_problem(api.client.get("/api/v1/incidents", headers=headers), 401, "no-session")


def test_session_ends_by_itself(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        headers = session_of(log_in(api))
        clock = api.parts.clock
        assert isinstance(clock, HastyClock)
        clock.skip(12 * 3600 + 1)
        check_problem(api.client.get("/api/v1/incidents", headers=headers), 401, "no-session")


def test_login_and_logout_are_in_the_audit(api: Api) -> None:
    headers = session_of(log_in(api)) | ours(api)
    api.client.cookies.clear()
    api.client.post("/logout", headers=headers)
    assert [(line.who, line.what) for line in list_audit(api.parts.control, 2)] == [
        ("test", "log_out"),
        ("test", "log_in"),
    ]
