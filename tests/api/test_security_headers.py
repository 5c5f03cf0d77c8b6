"""Every answer carries the headers that keep a browser safe, the refused and the failed too, and a request id."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from api.security_headers import REQUEST_ID, SECURITY_HEADERS, choose_request_id
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.rules import rules_of


@pytest.fixture(scope="module")
def light_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("headers"), FakeStore()) as running:
        yield running


def test_every_route_answers_with_all_of_them(shared_api: Api) -> None:
    tokens = {
        scope: shared_api.make_token(scope, "x" if scope == "ingest" else None) for scope in ("admin", "ingest")
    }
    for rule in rules_of(shared_api.parts):
        secret = tokens["ingest" if rule.is_for_agents else "admin"]
        with shared_api.client.stream(rule.method, rule.url, headers=bearer(secret)) as answer:
            missing = {name for name, value in SECURITY_HEADERS.items() if answer.headers.get(name) != value}
            assert not missing, f"{rule.key} answers {answer.status_code} without {missing}"
            assert answer.headers[REQUEST_ID], rule.key
            assert answer.headers["Cache-Control"], rule.key


@pytest.mark.parametrize("path", ["/static/lockstep.css", "/static/nothing.css", "/nowhere", "/api/v1/nowhere"])
def test_files_and_what_is_not_there_have_them_too(light_api: Api, path: str) -> None:
    answer = light_api.client.get(path)
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_policy_lets_no_script_or_style_run_that_stands_in_the_page() -> None:
    policy = dict(rule.strip().split(" ", 1) for rule in SECURITY_HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"


def test_answers_of_the_api_are_kept_nowhere(light_api: Api) -> None:
    assert light_api.get("/api/v1/incidents").headers["Cache-Control"] == "no-store"


def test_failure_nobody_foresaw_has_them_and_tells_nothing(light_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the inside of the server")

    monkeypatch.setattr("api.routes.audit.list_audit", fail)
    with structlog.testing.capture_logs():
        answer = light_api.get("/api/v1/audit")
    assert check_problem(answer, 500, "failed") == "this should not have happened; the server's log says more"
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_browsers_are_told_to_stay_with_tls_only_where_there_is_tls(tmp_path: Path) -> None:
    with_tls = ApiSettings(tls_cert=Path("cert.pem"), tls_key=Path("key.pem"))
    for settings_of_api, expected in ((ApiSettings(), None), (with_tls, "max-age=31536000")):
        folder = tmp_path / str(expected)
        folder.mkdir()
        with running_api(folder, FakeStore(), settings=Settings(api=settings_of_api)) as api:
            assert api.client.get("/healthz").headers.get("Strict-Transport-Security") == expected


def test_proxy_s_request_id_is_kept(light_api: Api) -> None:
    assert light_api.client.get("/healthz", headers={REQUEST_ID: "edge-7.a_b"}).headers[REQUEST_ID] == "edge-7.a_b"


def test_requests_without_an_id_get_one_each(light_api: Api) -> None:
    seen = {light_api.client.get("/healthz").headers[REQUEST_ID] for _ in range(5)}
    assert len(seen) == 5


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100))
def test_nothing_but_plain_ids_reaches_the_log(sent: str) -> None:
    chosen = choose_request_id(sent)
    assert chosen.isascii()
    assert 1 <= len(chosen) <= 64
    assert not set(chosen) & set("\r\n \"'{}")


def test_log_lines_of_a_request_carry_its_id(light_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("api.routes.audit.list_audit", fail)
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        answer = light_api.get("/api/v1/audit")
    failed = [line for line in lines if line["event"] == "request failed"]
    assert [line["request"] for line in failed] == [answer.headers[REQUEST_ID]]
