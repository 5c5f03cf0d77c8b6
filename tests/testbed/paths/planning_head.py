"""A head node that plans paths, and collectors that probe the fabric and bring the plan to their hosts."""

import json
import subprocess
from pathlib import Path

from pydantic import ValidationError

from lockstep.host_paths import HostPaths
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.tokens import create_token
from lockstep.store.store import Store, open_store
from lockstep.topology import dump_topology
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.shim import AGENT
from tests.testbed.scenarios.head_node import SOURCES, HeadNode
from tests.testbed.services import LOCKSTEP, Service, own_environment


class PlanningHead(HeadNode):
    """`lockstep up` with planned paths; collectors follow the plan, answer the shim, and probe where told to."""

    def __init__(self, directory: Path, fabric: Fabric, *, probes: bool = True) -> None:
        super().__init__(directory, fabric)
        self._probes = probes

    def __enter__(self) -> "PlanningHead":
        self._directory.mkdir(parents=True, exist_ok=True)
        self._topology.write_text(dump_topology(self._fabric.topology), encoding="utf-8")
        settings = {
            "LOCKSTEP_STATE_DIR": str(self._directory / "head"),
            "LOCKSTEP_API_LISTEN": self.url.removeprefix("http://"),
            "LOCKSTEP_API_OPEN_READS": "true",
            "LOCKSTEP_ANALYZER_TOPOLOGY": str(self._topology),
            "LOCKSTEP_PLANNER_PATHS": "true",
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        service = Service(("up",), settings, f"{self.url}/healthz", self._directory / "head.log")
        self._stack.enter_context(service)
        return self

    @property
    def _topology(self) -> Path:
        return self._directory / "topology.json"

    def start_collector(self, host: str, rings: Path) -> "subprocess.Popen[bytes]":
        """Start the collector of a host, in its namespace."""
        folder = self._directory / host
        folder.mkdir()
        self.token_of(host).write_text(self._make_token(host))
        settings = {
            "LOCKSTEP_STATE_DIR": str(folder),
            "LOCKSTEP_COLLECTOR_SERVER": self.url,
            "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(self.token_of(host)),
            "LOCKSTEP_COLLECTOR_HOST": host,
            "LOCKSTEP_COLLECTOR_SOURCES": json.dumps([*SOURCES, "probes"]),
            "LOCKSTEP_COLLECTOR_PROBES": json.dumps(self._probes),
            "LOCKSTEP_COLLECTOR_RING_DIRS": json.dumps([str(rings)]),
            "LOCKSTEP_COLLECTOR_TOPOLOGY": str(self._topology),
            "LOCKSTEP_COLLECTOR_PATHS_FILE": str(self.plan_of(host)),
            "LOCKSTEP_COLLECTOR_PATHS_REPORTS": str(self.reports_of(host)),
            "LOCKSTEP_COLLECTOR_PATHS_AGENT": AGENT,
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        with open(folder / "collector.log", "ab") as log:
            return self._fabric.run_in(host, [LOCKSTEP, "collect"], own_environment(settings), stdout=log, stderr=log)

    def plan_of(self, host: str) -> Path:
        """Return the file in which the shim of a host finds its plan."""
        return self._directory / host / "paths" / "plan"

    def reports_of(self, host: str) -> Path:
        """Return where the shim of a host tells what became of its connections."""
        return self._directory / host / "paths" / "reports"

    def token_of(self, host: str) -> Path:
        return self._directory / host / "token"

    def told(self, host: str) -> HostPaths | None:
        """Return what the collector of a host was told last of the plan; None before that."""
        try:
            return HostPaths.model_validate_json(self.plan_of(host).with_name("plan.json").read_bytes())
        except (FileNotFoundError, ValidationError):  # none yet, or just being written
            return None

    def open_control(self) -> ControlDatabase:
        return open_control(f"sqlite:///{self._directory / 'head' / 'control.db'}")

    def open_store(self) -> Store:
        """Open the store; only when the head node is no more, because it is embedded in that."""
        return open_store(f"chdb://{self._directory / 'head' / 'store'}")

    def _make_token(self, host: str) -> str:
        with self.open_control() as control:
            return create_token(control, scope="ingest", host=host, name="testbed", now_ns=1)
