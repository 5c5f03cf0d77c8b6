"""The whole way in as real processes on loopback: collector -> gateway -> ClickHouse, each of which can be killed."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from lockstep.state.database import open_control
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import Service, collector_settings, free_port
from tests.testbed.tcp_proxy import TcpProxy

HOST = "h0"


class Pipeline:
    """One host's collector, a gateway and a store; a proxy stands between the first two."""

    def __init__(self, directory: Path, rings: Path, spool: Path, sources: Sequence[str] = ("nccl_rings",)) -> None:
        """`rings` is where ranks record, `spool` the collector's state directory; no sources are all there are."""
        self._directory, self._rings, self._spool, self._sources = directory, rings, spool, sources
        self._stack = ExitStack()
        self._metrics_port = free_port()

    def __enter__(self) -> "Pipeline":
        with ExitStack() as stack:
            self.store_server = stack.enter_context(ClickHouseServer(self._directory / "clickhouse"))
            with self.open_store() as store:
                migrate(store, Layout(store.database), now_ns=1)
            self.gateway = stack.enter_context(self._gateway(free_port()))
            self.proxy = stack.enter_context(TcpProxy(self._gateway_port))
            self.collector = stack.enter_context(self._collector())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def services(self) -> tuple[Service, Service, ClickHouseServer]:
        return self.collector, self.gateway, self.store_server

    def open_store(self) -> Store:
        return open_store(self.store_server.url)

    def metric(self, name: str, source: str | None = None) -> float:
        answer = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=5, trust_env=False)
        samples = (sample for family in text_string_to_metric_families(answer.text) for sample in family.samples)
        wanted = f"lockstep_collector_{name}"
        return next(s.value for s in samples if s.name == wanted and s.labels.get("source") == source)

    def _gateway(self, port: int) -> Service:
        self._gateway_port = port
        settings = {
            "LOCKSTEP_STATE_DIR": str(self._directory / "gateway"),
            "LOCKSTEP_STORE_URL": self.store_server.url,
            "LOCKSTEP_API_LISTEN": f"127.0.0.1:{port}",
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        log = self._directory / "gateway.log"
        return Service(("serve", "api"), settings, f"http://127.0.0.1:{port}/healthz", log)

    def _collector(self) -> Service:
        token = self._directory / "token"
        with open_control(f"sqlite:///{self._directory / 'gateway' / 'control.db'}") as control:
            token.write_text(create_token(control, scope="ingest", host=HOST, name="testbed", now_ns=1))
        server = f"http://127.0.0.1:{self.proxy.port}"
        settings = collector_settings(self._spool, server, token, HOST, self._sources, self._rings)
        settings["LOCKSTEP_COLLECTOR_LISTEN"] = f"127.0.0.1:{self._metrics_port}"
        probe = f"http://127.0.0.1:{self._metrics_port}/metrics"
        return Service(("collect",), settings, probe, self._directory / "collector.log")
