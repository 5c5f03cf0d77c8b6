"""A real Prometheus for tests, from Debian's package, on loopback; asked over its HTTP API."""

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

from tests.deploy.alert_rules import FILES, told_configuration
from tests.testbed.services import free_port, wait_until

PROGRAM = "prometheus"
_OFTEN = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\n"


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API, which must be a success."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def health(self) -> dict[str, str]:
        """Return how the target of each scrape job does, with the reason where it is not up."""
        found = self.ask("targets", state="active")["activeTargets"]
        return {target["labels"]["job"]: target["lastError"] or target["health"] for target in found}

    def has(self, metric: str) -> bool:
        return bool(self.ask("series", **{"match[]": metric}))

    def draw(self, expression: str) -> list[Any]:
        """Return the lines that Grafana would draw of the last minute."""
        now_s = time.time()
        found: list[Any] = self.ask("query_range", query=expression, start=str(now_s - 60), end=str(now_s), step="1")[
            "result"
        ]
        return found


@contextmanager
def prometheus(folder: Path, places: Mapping[str, str], alertmanager_url: str) -> Iterator[Prometheus]:
    """Start it with our rules and the README's configuration, in which `places` stand for addresses and paths."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed: system-packages.txt")
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(_configuration(copy_rules(folder), places, alertmanager_url))
    where = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, *where, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    running = Prometheus(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _is_ready(running.url), f"Prometheus is ready; see {folder / 'prometheus.log'}")
        yield running
    finally:
        process.terminate()
        process.wait()


def copy_rules(folder: Path) -> Path:
    """Copy our rules with `for` cut to a second, and nothing else changed; return what finds the copies."""
    for file in FILES:
        (folder / file.name).write_text(re.sub(r"^( +for: )\w+$", r"\g<1>1s", file.read_text(), flags=re.MULTILINE))
    return folder / "lockstep-*.rules.yml"


def _configuration(rules: Path, places: Mapping[str, str], alertmanager_url: str) -> str:
    told = told_configuration()
    for from_manual, here in ({"/etc/prometheus/lockstep-*.rules.yml": str(rules)} | dict(places)).items():
        assert told.count(from_manual) == 1, f"the README does not name {from_manual} once"
        told = told.replace(from_manual, here)
    manager = urlsplit(alertmanager_url).netloc
    return f'{_OFTEN}{told}alerting: {{alertmanagers: [{{static_configs: [{{targets: ["{manager}"]}}]}}]}}\n'


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False
