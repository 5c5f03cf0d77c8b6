"""Every answer carries the headers that keep a browser safe, the refused and the failed too, and a request id."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from api.middleware import REQUEST_ID, SECURITY_HEADERS, choose_request_id
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, batch_headers, bearer, check_problem, running_api
from tests.api.fake_store import AwayStore, FakeStore
from tests.api.rules import rules_of
from tests.lockstep.state.build import incident
from tests.waiting import eventually


@pytest.fixture(scope="module")
def light_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("headers"), FakeStore()) as running:
        yield running


def test_every_route_answers_with_all_of_them_and_has_a_slot_where_it_reads_the_store(api: Api) -> None:
    """A route without a slot would be told that the store is slow, though nobody waits for it."""
    save_incidents(api.parts.control, [incident("x")], None)
    tokens = {scope: api.make_token(scope, "x" if scope == "ingest" else None) for scope in ("admin", "ingest")}
    for rule in rules_of(api.parts):
        secret = tokens["ingest" if rule.is_for_agents else "admin"]
        asked = {"job": "x"} if rule.method == "GET" else None
        with api.client.stream(rule.method, rule.url, params=asked, headers=bearer(secret)) as answer:
            missing = {name for name, value in SECURITY_HEADERS.items() if answer.headers.get(name) != value}
            assert not missing, f"{rule.key} answers {answer.status_code} without {missing}"
            assert answer.headers[REQUEST_ID], rule.key
            assert answer.headers["Cache-Control"], rule.key
            if rule.path != "/api/v1/incidents/stream":
                assert b"as may wait for it" not in answer.read(), rule.key


def test_files_and_what_is_not_there_have_them_too_and_no_script_or_style_of_the_page_runs(light_api: Api) -> None:
    for path in ("/static/lockstep.css", "/static/nothing.css", "/nowhere", "/api/v1/nowhere"):
        answer = light_api.client.get(path)
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert light_api.get("/api/v1/incidents").headers["Cache-Control"] == "no-store"
    policy = dict(rule.strip().split(" ", 1) for rule in SECURITY_HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"


def test_failure_nobody_foresaw_shows_nothing_and_is_in_the_log(
    light_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("password=correct-horse")

    for path, broken in (
        ("audit", "api.routes.admin.list_audit"),
        ("incidents", "api.views.incidents.IncidentPages.find"),
    ):
        monkeypatch.setattr(broken, fail)
        with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
            answer = light_api.get(f"/api/v1/{path}")
        assert check_problem(answer, 500, "failed") == "this should not have happened; the server's log says more"
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert not [word for word in ("horse", "ZeroDivisionError") if word in answer.text]
        assert [(line["event"], line["path"], str(line["exc_info"]), line["request"]) for line in lines] == [
            ("request failed", f"/api/v1/{path}", "password=correct-horse", answer.headers[REQUEST_ID])
        ]


def test_browsers_are_told_to_stay_with_tls_only_where_there_is_tls(tmp_path: Path) -> None:
    with_tls = ApiSettings(tls_cert=Path("cert.pem"), tls_key=Path("key.pem"))
    for settings_of_api, expected in ((ApiSettings(), None), (with_tls, "max-age=31536000")):
        folder = tmp_path / str(expected)
        folder.mkdir()
        with running_api(folder, FakeStore(), settings=Settings(api=settings_of_api)) as api:
            assert api.client.get("/healthz").headers.get("Strict-Transport-Security") == expected


def test_proxy_s_request_id_is_kept_and_others_get_one_each(light_api: Api) -> None:
    assert light_api.client.get("/healthz", headers={REQUEST_ID: "edge-7.a_b"}).headers[REQUEST_ID] == "edge-7.a_b"
    seen = {light_api.client.get("/healthz").headers[REQUEST_ID] for _ in range(5)}
    assert len(seen) == 5


@given(st.text(max_size=100))
def test_nothing_but_plain_ids_reaches_the_log(sent: str) -> None:
    chosen = choose_request_id(sent)
    assert chosen.isascii()
    assert 1 <= len(chosen) <= 64
    assert not set(chosen) & set("\r\n \"'{}")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("left")
    with running_api(folder, AwayStore(), settings=Settings(state_dir=folder)) as running:
        yield running


def leave_early(api: Api, path: str, headers: dict[str, str]) -> None:
    """Promise a body on a real connection, send the begin of it, and hang up."""
    place = urlsplit(str(api.client.base_url))
    lines = [f"POST {path} HTTP/1.1", "Host: head", "Content-Length: 10000"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((str(place.hostname), place.port or 0)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * 1000)


def left(api: Api, kind: str) -> bool:
    return f'lockstep_api_disconnects_total{{to="{kind}"}} 1.0' in api.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/v1/ingest", "ingest"),
        ("/api/v1/intake/gpud", "intake"),
        ("/api/v1/captures?job=x", "captures"),
        ("/login", "other"),
    ],
)
def test_client_that_leaves_is_counted_and_nobody_is_told_of_a_failure(api: Api, path: str, kind: str) -> None:
    agent = kind in ("ingest", "intake")
    headers = batch_headers(api.make_token("ingest", "h0")) if agent else bearer(api.make_token("admin"))
    with capture_logs() as lines:
        leave_early(api, path, headers)
        eventually(lambda: left(api, kind))
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]
    assert api.client.get("/healthz").status_code == 200
    assert api.get("/api/v1/captures").json()["items"] == [], "nothing is left of a capture that never came"
