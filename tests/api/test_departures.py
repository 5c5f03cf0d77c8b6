"""A client that leaves in the middle of its body is counted, and is no failure of ours."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from lockstep.config import Settings
from tests.api.build import Api, batch_headers, bearer, running_api
from tests.api.test_store_slots import FakeAwayStore
from tests.waiting import eventually


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeAwayStore(), settings=Settings(state_dir=tmp_path)) as running:
        yield running


def leave_early(api: Api, path: str, headers: dict[str, str]) -> None:
    """Promise a body on a real connection, send the begin of it, and hang up."""
    place = urlsplit(str(api.client.base_url))
    lines = [f"POST {path} HTTP/1.1", "Host: head", "Content-Length: 100000"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((str(place.hostname), place.port or 0)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * 1000)


def left(api: Api, kind: str) -> bool:
    return f'lockstep_api_clients_left_total{{to="{kind}"}} 1.0' in api.get("/metrics").text


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


def test_nothing_is_left_of_a_capture_that_never_came(api: Api) -> None:
    leave_early(api, "/api/v1/captures?job=x", bearer(api.make_token("admin")))
    eventually(lambda: left(api, "captures"))
    assert api.get("/api/v1/captures").json()["items"] == []
