"""A real Prometheus with our rules watches a real server and collector, and a real Alertmanager hears what it finds.

Rules and configuration are those that people get, with two changes: `for` is cut to a second in a copy of the rules,
and Prometheus looks every two seconds.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from lockstep.batches import encode_batch
from lockstep.state.database import open_control
from lockstep.state.incidents import note_jobs
from lockstep.state.tokens import create_token
from tests.api.alerts.real_alertmanager import Alertmanager, alertmanager
from tests.api.alerts.receivers import receiving
from tests.api.build import batch_headers
from tests.builders import rows
from tests.deploy.grafana_boards import panels
from tests.deploy.test_prometheus import (
    BASE,
    FILES,
    OPERATIONS,
    README,
    RULES,
    fail_an_action,
    metrics_in,
    step_at,
    told_configuration,
)
from tests.http_serving import is_up
from tests.testbed.services import LOCKSTEP, Service, collector_settings, free_port, own_environment, wait_until
from tests.waiting import eventually

pytestmark = pytest.mark.slow

MAKE_TOKEN = "token create prometheus --scope read"
HOST, OTHER_HOST = "h0", "h9"
LIMIT_S = 120  # far more than any of it takes, also on a busy machine
PROGRAM = "prometheus"
_OFTEN = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\n"


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def health(self) -> dict[str, str]:
        found = self.ask("targets", state="active")["activeTargets"]
        return {target["labels"]["job"]: target["lastError"] or target["health"] for target in found}

    def draws(self, expression: str) -> bool:
        """Return whether Grafana would draw something of the last minute."""
        now_s = time.time()
        asked = {"query": expression, "start": str(now_s - 60), "end": str(now_s), "step": "1"}
        return bool(self.ask("query_range", **asked)["result"])


@contextmanager
def prometheus(folder: Path, places: Mapping[str, str], alertmanager_url: str) -> Iterator[Prometheus]:
    """Start it with our rules and the README's configuration, in which `places` stand for addresses and paths."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed: system-packages.txt")
    for file in FILES:
        (folder / file.name).write_text(re.sub(r"^( +for: )\w+$", r"\g<1>1s", file.read_text(), flags=re.MULTILINE))
    told = told_configuration()
    for from_manual, here in places.items():
        assert told.count(from_manual) == 1, f"the README does not name {from_manual} once"
        told = told.replace(from_manual, here)
    manager = urlsplit(alertmanager_url).netloc
    alerting = f'alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{manager}"]}}]}}]}}\n'
    config, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    config.write_text(_OFTEN + told + alerting)
    command = [PROGRAM, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        wait_until(
            lambda: is_up(f"http://{address}/-/ready"), f"Prometheus is ready; see {folder / 'prometheus.log'}"
        )
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Site:
    """A head node, a host with a collector that is not started yet, and those who watch them."""

    folder: Path
    server: Service
    collector: Service
    prometheus: Prometheus
    manager: Alertmanager

    def firing(self) -> dict[str, dict[str, Any]]:
        return {alert["labels"]["alertname"]: alert for alert in self.manager.alerts()}

    def hears(self, name: str) -> dict[str, Any]:
        eventually(lambda: name in self.firing(), LIMIT_S)
        return self.firing()[name]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    head, host = (f"127.0.0.1:{free_port()}" for _ in range(2))
    rings = ["nccl_rings"]
    settings = collector_settings(
        tmp_path / "collector", f"http://{head}", tmp_path / "collector.token", HOST, rings, tmp_path
    )
    settings["LOCKSTEP_COLLECTOR_LISTEN"] = host
    collector = Service(("collect",), settings, f"http://{host}/metrics", tmp_path / "collector.log")
    with receiving() as hook, alertmanager(tmp_path, hook.url) as manager:
        watching = {
            "LOCKSTEP_STATE_DIR": str(tmp_path / "head"),
            "LOCKSTEP_API_LISTEN": head,
            "LOCKSTEP_ALERTS_ALLOW": '["127.0.0.1/32"]',
            "LOCKSTEP_ALERTS_TARGETS": json.dumps([{"name": "am", "kind": "alertmanager", "url": manager.url}]),
        }
        server = Service(("serve", "api"), watching, f"http://{head}/healthz", tmp_path / "server.log")
        with server, prometheus(tmp_path, places_of(tmp_path, head, host), manager.url) as watcher:
            yield Site(tmp_path, server, collector, watcher, manager)


def places_of(folder: Path, head: str, host: str) -> dict[str, str]:
    """Return what stands here for what the README names; the token is made by its command."""
    assert f"`lockstep {MAKE_TOKEN}`" in README
    environment = own_environment({"LOCKSTEP_STATE_DIR": str(folder / "head")})
    command = [LOCKSTEP, *MAKE_TOKEN.split()]
    token = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "lockstep.token").write_text(token)
    (folder / "hosts.json").write_text(json.dumps([{"targets": [host]}]))
    return {
        "/etc/prometheus/lockstep.token": str(folder / "lockstep.token"),
        "head.example:8642": head,
        "/etc/prometheus/lockstep-hosts.json": str(folder / "hosts.json"),
        "/etc/prometheus/lockstep-*.rules.yml": str(folder / "lockstep-*.rules.yml"),
    }


@contextmanager
def busy(site: Site) -> Iterator[None]:
    """Let the collector report, a job make steps, and an action against an incident fail."""
    with open_control(f"sqlite:///{site.folder / 'head' / 'control.db'}") as control:
        mine, other = (create_token(control, scope="ingest", host=h, name=h, now_ns=1) for h in (HOST, OTHER_HOST))
        fail_an_action(control, time.time_ns())
        note_jobs(control, {"train": time.time_ns()})  # no analyzer runs here
    (site.folder / "collector.token").write_text(mine)
    made = encode_batch({"steps": rows(step_at(time.time_ns(), OTHER_HOST))})
    place, headers = site.server.probe.replace("/healthz", "/api/v1/ingest"), batch_headers(other, agent=OTHER_HOST)
    httpx.post(place, content=made, headers=headers, timeout=LIMIT_S, trust_env=False).raise_for_status()
    with site.collector:
        yield


def test_what_holds_reaches_alertmanager_with_its_runbook_and_ends_with_its_reason(site: Site) -> None:
    assert site.hears("LockstepNoTelemetry")["annotations"]["runbook_url"] == f"{BASE}/operations.md#no-telemetry"
    site.hears("LockstepHostSilent")
    with busy(site):
        check_that_everything_is_there(site.prometheus)
        eventually(lambda: not {"LockstepNoTelemetry", "LockstepHostSilent"} & site.firing().keys(), LIMIT_S)
        assert site.hears("LockstepJobSlow")["annotations"]["runbook_url"] == f"{BASE}/operations.md#comm_slow"
        for name in ("LockstepActionFailed", "LockstepAction", "LockstepIncident"):  # the rule's, and two of our own
            site.hears(name)
    site.server.kill()
    site.hears("LockstepServerDown")
    check_runbooks(site.manager)


def check_that_everything_is_there(watcher: Prometheus) -> None:
    """Wait until both targets are up, and each metric of a rule and each panel that asks Prometheus has a figure."""
    named = {name for rule in RULES for name in metrics_in(rule["expr"])}
    eventually(lambda: watcher.health() == {"lockstep-server": "up", "lockstep-collector": "up"}, LIMIT_S)
    eventually(lambda: all(watcher.ask("series", **{"match[]": name}) for name in named), LIMIT_S)
    asked = [panel.target["expr"] for panel in panels() if "expr" in panel.target]
    assert asked
    eventually(lambda: all(map(watcher.draws, asked)), LIMIT_S)


def check_runbooks(manager: Alertmanager) -> None:
    """Fail unless every alert of a rule that has come has a link to a heading of the manual."""
    ours = [alert for alert in manager.alerts() if alert["labels"]["lockstep"] == "rule"]
    links = [alert["annotations"]["runbook_url"] for alert in ours]
    anchors = [re.fullmatch(rf"{re.escape(BASE)}/operations\.md#([\w-]+)", link) for link in links]
    assert anchors
    assert all(found and f'<a id="{found[1]}"></a>' in OPERATIONS for found in anchors), links
