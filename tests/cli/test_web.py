"""The server speaks TLS when it is told to, listens where it is safe, and lets streams end when it leaves."""

import socket
import ssl
import subprocess
import sys
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
from api.dependencies import Parts
from api.ingest.gateway import Gateway, GatewayOptions
from api.routes.health import health_app
from api.web import WebServer, check_exposure, read_tls, scheme_of
from lockstep.config import Settings, load_settings
from lockstep.errors import BadInput, BadSettings
from lockstep.sections import ApiSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout
from tests.api.fake_store import FakeStore
from tests.waiting import LIMIT_S, HastyClock, eventually


def with_tls(folder: Path) -> ApiSettings:
    cert, key = write_certificate(folder)
    return ApiSettings(tls_cert=cert, tls_key=key)


@contextmanager
def serving(server: WebServer) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the server does not leave"
        listener.close()


def test_server_with_a_certificate_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    api = with_tls(tmp_path)
    server = WebServer(health_app(lambda: None, []), lambda: None, lambda: None, read_tls(api))
    trust = ssl.create_default_context(cafile=str(api.tls_cert))
    context = read_tls(api)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    with serving(server) as port:
        with httpx.Client(verify=trust, trust_env=False, timeout=LIMIT_S) as client:
            assert client.get(f"https://127.0.0.1:{port}/healthz").text == "ok\n"
        with httpx.Client(trust_env=False, timeout=LIMIT_S) as client, pytest.raises(httpx.TransportError):
            client.get(f"http://127.0.0.1:{port}/healthz")
    assert scheme_of(api) == "https"


def test_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other_key = write_certificate(tmp_path / "other")
    (tmp_path / "locked").mkdir()
    locked = write_certificate(tmp_path / "locked", "secret")
    for pair in ((tmp_path / "nowhere", key), (cert, other_key), (key, cert), locked):
        with pytest.raises(BadInput, match="TLS cannot be served with"):
            read_tls(ApiSettings(tls_cert=pair[0], tls_key=pair[1]))
    with pytest.raises(BadSettings, match="tls_cert and tls_key come together"):
        load_settings({"LOCKSTEP_API_TLS_CERT": "cert.pem"})
    assert read_tls(ApiSettings()) is None
    assert scheme_of(ApiSettings()) == "http"


def test_what_others_can_reach_is_warned_of_and_a_demo_of_it_refused() -> None:
    with_tls = ApiSettings(listen="head:8642", tls_cert=Path("c"), tls_key=Path("k"), open_reads=True)
    reached: list[tuple[ApiSettings, list[str]]] = [
        *((ApiSettings(listen=f"{host}:8642", open_reads=True), []) for host in ("127.0.0.1", "[::1]", "localhost")),
        (ApiSettings(listen="0.0.0.0:8642"), ["unencrypted"]),
        (ApiSettings(listen="[::]:8642", open_reads=True), ["without a token", "unencrypted"]),
        (ApiSettings(listen="head:8642", tls_in_front=True), []),
        (with_tls, ["without a token"]),
    ]
    for api, words in reached:
        with structlog.testing.capture_logs() as lines:
            check_exposure(api)
        assert [line["log_level"] for line in lines] == ["warning"] * len(words)
        assert all(word in line["event"] for word, line in zip(words, lines, strict=True))
    check_exposure(ApiSettings(listen="127.0.0.1:8642", open_reads=True), is_demo=True)
    with pytest.raises(BadInput, match=r"listens on loopback only, not 0\.0\.0\.0:8642"):
        check_exposure(ApiSettings(listen="0.0.0.0:8642"), is_demo=True)


def test_server_that_leaves_does_not_wait_for_streams(tmp_path: Path, control: ControlDatabase) -> None:
    clock, store = HastyClock(), FakeStore()
    gateway = Gateway(tmp_path / "gateway", store, clock, GatewayOptions(leave_s=600.0))
    parts = Parts(Settings(), store, Layout(store.database), control, gateway, clock)
    token = create_token(control, scope="read", host=None, name="ann", now_ns=1)
    server = WebServer(create_app(parts), lambda: None, lambda: None)
    with serving(server) as port, httpx.Client(trust_env=False, timeout=LIMIT_S) as client:
        url, headers = f"http://127.0.0.1:{port}/api/v1/incidents/stream", {"Authorization": f"Bearer {token}"}
        with client.stream("GET", url, headers=headers) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            server.should_exit = True
            assert list(lines) == [""], "the stream ends, and ends well"


def test_headers_have_a_deadline_and_an_address_a_bound_on_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.web._HEADERS_S", 0.1)
    monkeypatch.setattr("api.web._most_connections", lambda parts: 2)
    server = WebServer(health_app(lambda: None, []), lambda: None, lambda: None)
    with serving(server) as port, httpx.Client(trust_env=False, timeout=LIMIT_S) as client:

        def wait_for_end(sent: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as slow:
                slow.sendall(sent)
                return slow.recv(1)

        assert [wait_for_end(sent) for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: h")] == [b"", b""]
        monkeypatch.setattr("api.web._HEADERS_S", LIMIT_S)
        url = f"http://127.0.0.1:{port}/healthz"
        assert client.get(url).text == client.get(url).text == "ok\n", "one connection, and each request in time"
        with socket.create_connection(("127.0.0.1", port)):
            assert wait_for_end(b"") == b"", "two are open, this is the third"
            assert client.get(url).text == "ok\n"


@pytest.mark.slow
def test_server_ends_in_time_whatever_is_under_way() -> None:
    code = """
import os, signal, threading
from fastapi import FastAPI
from api import web
web.LEAVE_S = 0.2
go_on = lambda: os.kill(os.getpid(), signal.SIGTERM)
web.serve(FastAPI(), web.listen_on("127.0.0.1:0", ""), go_on, threading.Event().wait)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "stopped in the midst of work, which goes on at the next start" in done.stdout


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
        answer = httpx.get(f"http://127.0.0.1:{port}/who", headers=told, trust_env=False, timeout=LIMIT_S)
        assert answer.json() == seen


def write_certificate(folder: Path, password: str = "") -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    sealed = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run([*made, *names, *sealed, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key
