"""A whole web process for tests: real routes over a real control database, with the store that the test brings."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import uvicorn.server
from fastapi import FastAPI

from api.app import create_app
from api.dependencies import Parts
from api.ingest.gateway import Gateway, GatewayOptions
from lockstep.batches import AGENT_HEADER, BOOT_HEADER, CONTENT_TYPE, ENCODING, NUMBER_HEADER, VERSION_HEADER
from lockstep.clock import Clock
from lockstep.config import Settings
from lockstep.records import RECORDS_VERSION
from lockstep.state.leases import Lease
from lockstep.state.tokens import Scope, create_token
from lockstep.store.migrations import Layout
from lockstep.store.store import Store
from lockstep.topology import Topology
from tests.builders import T0
from tests.fixtures.control import hold_lease, opened_control
from tests.waiting import LIMIT_S, PunctualClock, eventually


@dataclass(frozen=True)
class Api:
    parts: Parts
    client: httpx.Client
    _readers: list[str] = field(default_factory=list)

    def make_token(self, scope: Scope, host: str | None = None) -> str:
        return create_token(self.parts.control, scope=scope, host=host, name="test", now_ns=T0)

    def lease(self, name: str) -> Lease:
        return hold_lease(self.parts.control, name, now_ns=self.parts.clock.now_ns())

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> httpx.Response:
        """Ask as a reader."""
        if not self._readers:
            self._readers.append(self.make_token("read"))
        return self.client.get(path, params=query, headers=bearer(self._readers[0]))

    def walk(self, path: str, query: Mapping[str, str | int]) -> list[dict[str, Any]]:
        """Return the items of all pages of a list, to which `next` and the Link header lead alike."""
        page = self.get(path, query)
        items: list[dict[str, Any]] = page.json()["items"]
        while cursor := page.json()["next"]:
            assert len(page.json()["items"]) <= int(query["limit"])
            assert f"cursor={cursor}" in page.links["next"]["url"]
            page = self.get(page.links["next"]["url"])
            items += page.json()["items"]
        assert "next" not in page.links
        return items


@contextmanager
def running_api(
    folder: Path,
    store: Store,
    *,
    settings: Settings | None = None,
    layout: Layout | None = None,
    gateway_store: Store | None = None,
    notice: str = "",
    clock: Clock | None = None,
    topology: Topology | None = None,
    duties: tuple[str, ...] = (),
) -> Iterator[Api]:
    clock = clock or PunctualClock()
    with opened_control(folder) as control:
        parts = Parts(
            settings=settings or Settings(),
            store=store,
            layout=layout or Layout(store.database),
            control=control,
            gateway=Gateway(folder / "gateway", gateway_store or store, clock, GatewayOptions(leave_s=600.0)),
            clock=clock,
            notice=notice,
            topology=topology,
            duties=duties,
        )
        with served(create_app(parts)) as url, open_client(url) as client:
            yield Api(parts, client)


def open_client(url: str) -> httpx.Client:
    """Return a client that trusts nobody: reading the system's certificates takes as long as starting the app."""
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(base_url=url, trust_env=False, timeout=LIMIT_S, verify=nobody)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def batch_headers(token: str, *, agent: str = "h0", boot: str = "b1", number: object = 1) -> dict[str, str]:
    return {
        **bearer(token),
        "Content-Type": CONTENT_TYPE,
        "Content-Encoding": ENCODING,
        AGENT_HEADER: agent,
        BOOT_HEADER: boot,
        NUMBER_HEADER: str(number),
        VERSION_HEADER: str(RECORDS_VERSION),
    }


def check_problem(answer: httpx.Response, status: int, slug: str) -> str:
    """Check that the answer is a problem document (RFC 9457) of that status and kind; return its sentence."""
    document: dict[str, Any] = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert set(document) == {"type", "title", "status", "detail", "instance"}
    assert (answer.status_code, document["type"]) == (status, f"urn:lockstep:problem:{slug}")
    assert (document["status"], document["instance"]) == (status, answer.request.url.path)
    assert document["title"] == slug.replace("-", " ")
    return str(document["detail"])


class _Hasty:
    """asyncio for uvicorn, which looks ten times a second whether it is to end: each test would wait for that."""

    def __getattr__(self, name: str) -> Any:  # Any: whatever asyncio has
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / 20)


uvicorn.server.asyncio = _Hasty()  # type: ignore[attr-defined,assignment]  # of that module alone

_KEPT_S = 3600  # connections: given up after uvicorn's 5 s, one is reset under whoever sends at that very moment


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Give the address of the app, which runs in a thread; at the end it is shut down as a process would be."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", ws="none", timeout_keep_alive=_KEPT_S)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served-app")
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        assert server.started, "the app did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
