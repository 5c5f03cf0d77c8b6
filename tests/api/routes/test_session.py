"""A browser logs in with a token and gets a cookie that stands for it: while it holds, and from our own pages."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from api.auth import SESSION_COOKIE
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.documents import list_audit
from lockstep.state.tokens import Scope, revoke_token
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.test_limits import StillClock
from tests.waiting import HastyClock

PAGE = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("sessions"), FakeStore()) as running:
        yield running


def log_in(api: Api, scope: Scope = "act", place: str = "/") -> httpx.Response:
    answer = api.client.post("/login", data={"token": api.make_token(scope), "next": place})
    api.client.cookies.clear()  # all tests share the client
    return answer


def session_of(answer: httpx.Response) -> dict[str, str]:
    return {"Cookie": f"{SESSION_COOKIE}={answer.cookies[SESSION_COOKIE]}"}


def ours(api: Api) -> dict[str, str]:
    return {"Origin": str(api.client.base_url).rstrip("/")}


def test_session_reads_as_its_token_and_its_cookie_is_kept_from_all_others(api: Api, tmp_path: Path) -> None:
    answer = log_in(api, place="/incidents?job=a")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/incidents?job=a")
    assert api.client.get("/api/v1/incidents", headers=session_of(answer)).status_code == 200
    token = api.make_token("act")
    said = api.client.post("/login", data={"token": token}).headers["Set-Cookie"]
    api.client.cookies.clear()
    words = {word.strip().partition("=")[0].lower(): word.strip().partition("=")[2] for word in said.split(";")}
    assert words.keys() >= {"httponly", "samesite", "path", "max-age"}
    assert (words["samesite"], words["path"], words["max-age"]) == ("strict", "/", str(12 * 3600))
    assert "secure" not in words, "plain HTTP on loopback would lose it"
    assert token.split("_", 2)[2] not in said
    with running_api(tmp_path, FakeStore(), settings=Settings(api=ApiSettings(tls_in_front=True))) as tls:
        assert "; Secure" in log_in(tls).headers["Set-Cookie"]


def test_worthless_token_and_foreign_page_log_nobody_in_and_the_login_leads_to_no_other_site(api: Api) -> None:
    answer = api.client.post("/login", data={"token": "lks_nope"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert "this token is unknown or revoked" in answer.text
    assert "Set-Cookie" not in answer.headers
    answer = api.client.post("/login", data={"token": api.make_token("ingest", "h0")})
    assert (answer.status_code, "a token of scope ingest does not allow reading" in answer.text) == (403, True)
    foreign = {"Origin": "https://evil.example"}
    answer = api.client.post("/login", data={"token": api.make_token("read")}, headers=foreign)
    check_problem(answer, 403, "other-origin")
    for place in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\nb"):
        assert log_in(api, place=place).headers["Location"] == "/"
        assert "evil.example" not in api.client.get("/login", params={"next": place}).text
    text = api.client.get("/login", params={"next": '/"><script>alert(1)</script>'}).text
    assert "<script>alert" not in text
    assert "/&#34;&gt;&lt;script&gt;" in text


def test_refused_logins_are_logged_and_audited_by_address_and_not_without_end(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore(), clock=StillClock()) as api, capture_logs() as lines:
        for _ in range(12):
            assert api.client.post("/login", data={"token": "lks_nope"}).status_code == 401
        audited = [(line.who, line.what, line.why) for line in list_audit(api.parts.control, 100)]
    assert audited == [("127.0.0.1", "log_in_refused", "unknown-token")] * 10
    assert [line["address"] for line in lines if line["event"] == "login refused"] == ["127.0.0.1"] * 10


def test_browser_without_a_session_is_led_to_the_login_and_back(api: Api) -> None:
    answer = api.client.get("/?job=a%20b", headers=PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=%2F%3Fjob%3Da%2520b")
    check_problem(api.client.get("/"), 401, "no-token")
    check_problem(api.client.get("/", headers=PAGE | bearer("lks_nope")), 401, "unknown-token")
    answer = api.client.get("/", headers=PAGE | {"Cookie": f"{SESSION_COOKIE}=old"})
    assert answer.status_code == 303


def test_act_of_a_session_needs_one_of_our_own_pages_and_is_no_more_than_its_token_may(api: Api) -> None:
    headers = session_of(log_in(api))
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
    check_problem(api.client.post(act, json={}, headers=bearer(api.make_token("act"))), 404, "not-found")
    headers = session_of(log_in(api, "read")) | ours(api)
    check_problem(api.client.post(act, json={}, headers=headers), 403, "wrong-scope")


def test_logout_or_revoked_token_ends_the_session_also_for_who_copied_the_cookie(api: Api) -> None:
    cookie = session_of(log_in(api))
    check_problem(api.client.post("/logout", headers=cookie), 403, "other-origin")
    assert api.client.get("/api/v1/incidents", headers=cookie).status_code == 200
    answer = api.client.post("/logout", headers=cookie | ours(api))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert 'lockstep_session="";' in answer.headers["Set-Cookie"]
    check_problem(api.client.get("/api/v1/incidents", headers=cookie | ours(api)), 401, "no-session")
    lines = [(line.who, line.what) for line in list_audit(api.parts.control, 2)]
    assert lines == [("test", "log_out"), ("test", "log_in")]
    token = api.make_token("read")
    cookie = session_of(api.client.post("/login", data={"token": token}))
    api.client.cookies.clear()
    revoke_token(api.parts.control, token.split("_")[1], 1)
    check_problem(api.client.get("/api/v1/incidents", headers=cookie), 401, "no-session")


def test_session_ends_by_itself(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        headers = session_of(log_in(api))
        clock = api.parts.clock
        assert isinstance(clock, HastyClock)
        clock.skip(12 * 3600 + 1)
        check_problem(api.client.get("/api/v1/incidents", headers=headers), 401, "no-session")
