"""The head node of a testbed: store, gateway, analyzer and API in one process, and a collector on every host."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from lockstep.state.database import open_control
from lockstep.state.tokens import create_token
from lockstep.topology import dump_topology
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.services import LOCKSTEP, Service, free_port, own_environment

SOURCES = ("nccl_rings", "connections", "links", "processes")


class HeadNode:
    """`lockstep up` where every host's collector reaches it; people reach it from this machine."""

    def __init__(self, directory: Path, fabric: Fabric) -> None:
        self._directory, self._fabric = directory, fabric
        self.url = f"http://{fabric.head_address}:{free_port()}"
        self._stack = ExitStack()

    def __enter__(self) -> "HeadNode":
        self._directory.mkdir(parents=True, exist_ok=True)
        topology = self._directory / "topology.json"
        topology.write_text(dump_topology(self._fabric.topology), encoding="utf-8")
        settings = {
            "LOCKSTEP_STATE_DIR": str(self._directory / "head"),
            "LOCKSTEP_API_LISTEN": self.url.removeprefix("http://"),
            "LOCKSTEP_API_OPEN_READS": "true",
            "LOCKSTEP_ANALYZER_TOPOLOGY": str(topology),
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        service = Service(("up",), settings, f"{self.url}/healthz", self._directory / "head.log")
        self._stack.enter_context(service)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_collector(self, host: str, rings: Path) -> "subprocess.Popen[bytes]":
        """Start the collector of a host, in its namespace."""
        folder = self._directory / host
        folder.mkdir()
        token = folder / "token"
        with open_control(f"sqlite:///{self._directory / 'head' / 'control.db'}") as control:
            token.write_text(create_token(control, scope="ingest", host=host, name="testbed", now_ns=1))
        settings = {
            "LOCKSTEP_STATE_DIR": str(folder),
            "LOCKSTEP_COLLECTOR_SERVER": self.url,
            "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(token),
            "LOCKSTEP_COLLECTOR_HOST": host,
            "LOCKSTEP_COLLECTOR_SOURCES": json.dumps(SOURCES),
            "LOCKSTEP_COLLECTOR_RING_DIRS": json.dumps([str(rings)]),
            "LOCKSTEP_COLLECTOR_TOPOLOGY": str(self._directory / "topology.json"),
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        with open(folder / "collector.log", "ab") as log:
            return self._fabric.run_in(host, [LOCKSTEP, "collect"], own_environment(settings), stdout=log, stderr=log)

    def get(self, path: str) -> Any:  # Any: JSON
        answer = httpx.get(f"{self.url}/api/v1/{path}", timeout=10, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def incidents(self) -> Sequence[dict[str, Any]]:
        """Return all incidents that were opened so far."""
        found: Sequence[dict[str, Any]] = self.get("incidents")["items"]
        return found
