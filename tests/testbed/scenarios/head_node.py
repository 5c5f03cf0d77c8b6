"""The head node of a testbed: store, gateway, analyzer, planner and API in one process; a collector on every host."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx
from pydantic import ValidationError

from lockstep.host_paths import HostPaths
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.tokens import create_token
from lockstep.store.store import Store, open_store
from lockstep.topology import dump_topology
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.shim import AGENT
from tests.testbed.services import LOCKSTEP, Service, collector_settings, free_port, own_environment

_SOURCES = ("nccl_rings", "connections", "links", "processes")


class HeadNode:
    """`lockstep up` where every host's collector reaches it; people reach it from this machine."""

    def __init__(self, directory: Path, fabric: Fabric, own: Mapping[str, str] = MappingProxyType({})) -> None:
        """`own` are settings beside those that every head of a testbed has."""
        self._directory, self._fabric = directory, fabric
        self.url = f"http://{fabric.head_address}:{free_port()}"
        self._topology = directory / "topology.json"
        settings = {
            "LOCKSTEP_STATE_DIR": str(directory / "head"),
            "LOCKSTEP_API_LISTEN": self.url.removeprefix("http://"),
            "LOCKSTEP_API_OPEN_READS": "true",
            "LOCKSTEP_ANALYZER_TOPOLOGY": str(self._topology),
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        self._service = Service(("up",), {**settings, **own}, f"{self.url}/healthz", directory / "head.log")

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._topology.write_text(dump_topology(self._fabric.topology), encoding="utf-8")
        self._service.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.__exit__()

    def start_collector(self, host: str, rings: Path) -> "subprocess.Popen[bytes]":
        folder = self._directory / host
        folder.mkdir()
        with self.open_control() as control:
            token = create_token(control, scope="ingest", host=host, name="testbed", now_ns=1)
        self.token_of(host).write_text(token)
        settings = collector_settings(folder, self.url, self.token_of(host), host, _SOURCES, rings)
        settings["LOCKSTEP_COLLECTOR_TOPOLOGY"] = str(self._topology)
        environment = own_environment(settings | self._collector_settings(host))
        with open(folder / "collector.log", "ab") as log:
            return self._fabric.run_in(host, [LOCKSTEP, "collect"], environment, stdout=log, stderr=log)

    def token_of(self, host: str) -> Path:
        return self._directory / host / "token"

    def open_store(self) -> Store:
        """Open the store; only when the head node is no more, because it is embedded in that."""
        return open_store(f"chdb://{self._directory / 'head' / 'store'}")

    def open_control(self) -> ControlDatabase:
        return open_control(f"sqlite:///{self._directory / 'head' / 'control.db'}")

    def incidents(self) -> Sequence[dict[str, Any]]:  # Any: JSON
        answer = httpx.get(f"{self.url}/api/v1/incidents", timeout=10, trust_env=False)
        answer.raise_for_status()
        found: Sequence[dict[str, Any]] = answer.json()["items"]
        return found

    def _collector_settings(self, host: str) -> dict[str, str]:
        return {}


class PlanningHead(HeadNode):
    """`lockstep up` with planned paths; collectors follow the plan, answer the shim, and probe where told to."""

    def __init__(self, directory: Path, fabric: Fabric, *, probes: bool = True) -> None:
        super().__init__(directory, fabric, {"LOCKSTEP_PLANNER_PATHS": "true"})
        self._probes = probes

    def plan_of(self, host: str) -> Path:
        return self._directory / host / "paths" / "plan"

    def reports_of(self, host: str) -> Path:
        """Return where the shim of a host tells what became of its connections."""
        return self._directory / host / "paths" / "reports"

    def paths_of(self, host: str) -> HostPaths | None:
        """Return what the collector of a host was told last of the plan; None before that."""
        try:
            return HostPaths.model_validate_json(self.plan_of(host).with_name("plan.json").read_bytes())
        except (FileNotFoundError, ValidationError):  # none yet, or just being written
            return None

    def _collector_settings(self, host: str) -> dict[str, str]:
        return {
            "LOCKSTEP_COLLECTOR_SOURCES": json.dumps([*_SOURCES, "probes"]),
            "LOCKSTEP_COLLECTOR_PROBES": json.dumps(self._probes),
            "LOCKSTEP_COLLECTOR_PATHS_FILE": str(self.plan_of(host)),
            "LOCKSTEP_COLLECTOR_PATHS_REPORTS": str(self.reports_of(host)),
            "LOCKSTEP_COLLECTOR_PATHS_AGENT": AGENT,
        }
