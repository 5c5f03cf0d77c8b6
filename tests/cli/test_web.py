"""The server speaks TLS when it is told to, listens where it is safe, and lets streams end when it leaves."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import structlog
from fastapi import FastAPI, Request

from api.app import create_app
from api.ingest.gateway import Gateway, GatewayOptions
from api.parts import Parts
from api.routes.health import health_app
from api.web import WebServer, check_exposure, read_tls, scheme_of
from lockstep.config import Settings, load_settings
from lockstep.errors import BadInput, BadSettings
from lockstep.sections import ApiSettings
from lockstep.state.database import open_control
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout
from tests.api.fake_store import FakeStore
from tests.cli.certificates import write_certificate
from tests.waiting import HastyClock, eventually


def with_tls(folder: Path) -> ApiSettings:
    cert, key = write_certificate(folder)
    return ApiSettings(tls_cert=cert, tls_key=key)


@contextmanager
def serving(server: WebServer) -> Iterator[int]:
    """Run the server in a thread and give its port; at the end it leaves as after a signal."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not leave"
        listener.close()


def test_server_with_a_certificate_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    api = with_tls(tmp_path)
    server = WebServer(health_app(lambda: None, []), lambda: None, lambda: None, read_tls(api))
    trust = ssl.create_default_context(cafile=str(api.tls_cert))
    with serving(server) as port:
        with httpx.Client(verify=trust, trust_env=False, timeout=60) as client:
            assert client.get(f"https://127.0.0.1:{port}/healthz").text == "ok\n"
        with httpx.Client(trust_env=False, timeout=60) as client, pytest.raises(httpx.TransportError):
            client.get(f"http://127.0.0.1:{port}/healthz")
    assert scheme_of(api) == "https"


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    context = read_tls(with_tls(tmp_path))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_without_a_certificate_it_is_plain_http() -> None:
    assert read_tls(ApiSettings()) is None
    assert scheme_of(ApiSettings()) == "http"


def test_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other_key = write_certificate(tmp_path / "other")
    (tmp_path / "locked").mkdir()
    locked = write_certificate(tmp_path / "locked", b"secret")
    for pair in ((tmp_path / "nowhere", key), (cert, other_key), (key, cert), locked):
        with pytest.raises(BadInput, match="TLS cannot be served with"):
            read_tls(ApiSettings(tls_cert=pair[0], tls_key=pair[1]))


def test_certificate_without_a_key_is_refused_with_the_settings() -> None:
    with pytest.raises(BadSettings, match="tls_cert and tls_key come together"):
        load_settings({"LOCKSTEP_API_TLS_CERT": "cert.pem"})


@pytest.mark.parametrize("listen", ["127.0.0.1:8642", "[::1]:8642", "localhost:8642"])
def test_nothing_is_said_on_loopback(listen: str) -> None:
    with structlog.testing.capture_logs() as lines:
        check_exposure(ApiSettings(listen=listen, open_reads=True), is_demo=True)
    assert lines == []


@pytest.mark.parametrize(
    ("api", "words"),
    [
        (ApiSettings(listen="0.0.0.0:8642"), ["unencrypted"]),
        (ApiSettings(listen="[::]:8642", open_reads=True), ["without a token", "unencrypted"]),
        (ApiSettings(listen="head:8642", tls_in_front=True), []),
        (
            ApiSettings(listen="head:8642", tls_cert=Path("c"), tls_key=Path("k"), open_reads=True),
            ["without a token"],
        ),
    ],
)
def test_what_others_can_reach_is_warned_of(api: ApiSettings, words: list[str]) -> None:
    with structlog.testing.capture_logs() as lines:
        check_exposure(api)
    assert [line["log_level"] for line in lines] == ["warning"] * len(words)
    assert all(word in line["event"] for word, line in zip(words, lines, strict=True))


def test_demo_that_others_could_read_is_refused() -> None:
    with pytest.raises(BadInput, match=r"listens on loopback only, not 0\.0\.0\.0:8642"):
        check_exposure(ApiSettings(listen="0.0.0.0:8642"), is_demo=True)


def test_server_that_leaves_does_not_wait_for_streams(tmp_path: Path) -> None:
    clock, store = HastyClock(), FakeStore()
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as control:
        gateway = Gateway(tmp_path / "gateway", store, clock, GatewayOptions())
        parts = Parts(Settings(), store, Layout(store.database), control, gateway, clock)
        token = create_token(control, scope="read", host=None, name="ann", now_ns=1)
        server = WebServer(create_app(parts), lambda: None, lambda: None)
        with serving(server) as port, httpx.Client(trust_env=False, timeout=60) as client:
            url, headers = f"http://127.0.0.1:{port}/api/v1/incidents/stream", {"Authorization": f"Bearer {token}"}
            with client.stream("GET", url, headers=headers) as answer:
                lines = answer.iter_lines()
                assert next(lines) == "retry: 2000"
                server.should_exit = True
                assert list(lines) == [""], "the stream ends, and ends well"


@pytest.mark.parametrize(("is_behind", "seen"), [(True, "203.0.113.7"), (False, "127.0.0.1")])
def test_whom_a_proxy_stands_for_is_believed_only_where_one_is_set(is_behind: bool, seen: str) -> None:
    app = FastAPI()
    app.state.parts = SimpleNamespace(settings=Settings(api=ApiSettings(tls_in_front=is_behind)))

    @app.get("/who")
    def who(request: Request) -> str:
        assert request.client is not None
        return request.client.host

    with serving(WebServer(app, lambda: None, lambda: None)) as port:
        told = {"X-Forwarded-For": "203.0.113.7"}
        assert httpx.get(f"http://127.0.0.1:{port}/who", headers=told, trust_env=False, timeout=60).json() == seen
