# ruff: noqa: TID251 -- lockstep is not installed where there is a GPU
"""What lives beside the jobs in a live test: the head, a collector on each host, and a receiver of its pages."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab import LabError, base_environment, end_in_order, torch_environment
from namespaces import HEAD, NETWORKS, RankNetwork

HOSTS, RANKS = 8, 4
API = f"{NETWORKS['mgmt0']}.{HEAD}:8642"
PAGER_PORT = 9099
NIC_BYTES_PER_S = 400_000_000
START_S = 120.0
FIRST_PORT = 29_500  # of the ranks' rendezvous


class Pager:
    """The receiver of alerts: keeps each page with the wall time of its arrival."""

    def __init__(self) -> None:
        self.pages: list[dict[str, object]] = []
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                now_ns = time.time_ns()
                kind = str(event["type"]).rpartition("incident.")[2]
                pages.extend({**item, "kind": kind, "arrived_ns": now_ns} for item in event["data"]["items"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- likewise
                pass

        server = ThreadingHTTPServer(("127.0.0.1", PAGER_PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Site:
    """The head, eight collectors, and everything else that outlives a job; all ended on exit."""

    def __init__(self, place: Path, lockstep: Sequence[str], network: RankNetwork, gpu: Mapping[str, str]) -> None:
        self.place, self.network, self._lockstep, self._gpu = place, network, list(lockstep), dict(gpu)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._jobs: list[str] = []
        self.pager = Pager()

    def start(self) -> None:
        """The head first, then a collector on each host once it answers."""
        settings = self.place / "lockstep.toml"
        settings.write_text(
            f'state_dir = "{self.place}/head"\n[api]\nlisten = "{API}"\nopen_reads = true\nopen_metrics = true\n'
            f'[alerts]\nallow = ["127.0.0.1/32"]\n[[alerts.targets]]\nname = "pager"\nkind = "webhook"\n'
            f'url = "http://127.0.0.1:{PAGER_PORT}/"\n'
        )
        head = {"LOCKSTEP_CONFIG": str(settings)}
        subprocess.run([*self._lockstep, "store", "migrate"], env=os.environ | head, check=True, timeout=START_S)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda host: self._make_token(host, head), range(HOSTS)))
        self._run("head", [*self._lockstep, "up"], head)
        self._await_head()
        for host in range(HOSTS):
            self.limit(host, NIC_BYTES_PER_S)
            self._collect(host)

    def _make_token(self, host: int, head: Mapping[str, str]) -> None:
        command = [*self._lockstep, "token", "create", f"h{host}", "--scope", "ingest", "--host", f"h{host}"]
        environment = os.environ | dict(head)
        made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=START_S)
        token = self.place / f"h{host}.token"
        token.touch(mode=0o600)
        token.write_text(made.stdout.split()[-1])

    def _await_head(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://{API}/api/v1/incidents", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise LabError(f"the head does not answer: {self.log('head')}")

    def _collect(self, host: int) -> None:
        settings = {
            "LOCKSTEP_STATE_DIR": str(self.place / f"collector-{host}"),
            "LOCKSTEP_COLLECTOR_SERVER": f"http://{API}",
            "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(self.place / f"h{host}.token"),
            "LOCKSTEP_COLLECTOR_HOST": f"h{host}",
            "LOCKSTEP_COLLECTOR_RING_DIRS": json.dumps([str(self.rings(host))]),
        }
        self._run(f"collector-{host}", [*self.network.command(host), *self._lockstep, "collect"], settings)

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with open(self.place / f"{name}.log", "wb") as log:
            process = subprocess.Popen(command, env=os.environ | dict(environment), stdout=log, stderr=log)
        self._processes.append(process)

    def rings(self, host: int) -> Path:
        folder = self.place / "rings" / f"h{host}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text(errors="replace")[-1500:]

    def limit(self, host: int, bytes_per_s: int) -> None:
        """From now on the host's NIC sends no faster than this."""
        self.network.prepare_limit(host, bytes_per_s).communicate(b"\n", timeout=20)

    def rank_environment(self, job: str, host: int, rank: int, first: int) -> dict[str, str]:
        if job not in self._jobs:
            self._jobs.append(job)
        logs = self.place / "nccl-logs"
        logs.mkdir(exist_ok=True)
        # Of the job before, some ports may still be open.
        master = f"{NETWORKS['eth0']}.{first + 1}:{FIRST_PORT + self._jobs.index(job)}"
        log = {
            "NCCL_HOSTID": f"live{host}",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,PROXY,PROFILE",
            "NCCL_DEBUG_FILE": f"{logs}/{job}.{rank}.%p.log",
        }
        ours = torch_environment(job, rank, RANKS, host, self.rings(host), master)
        return base_environment() | log | self._gpu | ours

    def capture(self, job: str, folder: Path) -> None:
        """Keep what the head knows of a job, to be analysed again elsewhere."""
        command = [*self._lockstep, "capture", "--job", job, "--server", f"http://{API}", "--since", "5m"]
        subprocess.run([*command, "--out", str(folder / f"{job}.tar.zst")], check=False, timeout=START_S)

    def stop(self) -> None:
        end_in_order(self._processes, (signal.SIGINT,), 15)
