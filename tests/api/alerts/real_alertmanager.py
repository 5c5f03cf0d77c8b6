"""A real Alertmanager for tests, from Debian's packages, on loopback; it hands on what it notifies to a webhook."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http_serving import is_up
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, eventually

PROGRAM = "prometheus-alertmanager"


@dataclass(frozen=True)
class Alertmanager:
    url: str

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/api/v2/alerts", trust_env=False, timeout=LIMIT_S).json()
        return sorted(found, key=lambda alert: str(alert["labels"]["alertname"] + alert["labels"].get("subject", "")))

    def silence(self, label: str, value: str) -> None:
        matcher = {"name": label, "value": value, "isRegex": False, "isEqual": True}
        times = {"startsAt": "2020-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z"}
        body = {"matchers": [matcher], "createdBy": "test", "comment": "test"} | times
        httpx.post(f"{self.url}/api/v2/silences", json=body, trust_env=False, timeout=LIMIT_S).raise_for_status()


@contextmanager
def alertmanager(folder: Path, receiver_url: str) -> Iterator[Alertmanager]:
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed")
    config = folder / "alertmanager.yml"
    route = {"receiver": "hook", "group_by": ["job"], "group_wait": "1s", "group_interval": "1s"}
    receivers = [{"name": "hook", "webhook_configs": [{"url": receiver_url, "send_resolved": True}]}]
    config.write_text(json.dumps({"route": route, "receivers": receivers}))  # JSON is YAML, too
    port = free_port()
    where = [f"--config.file={config}", f"--storage.path={folder / 'am'}", f"--web.listen-address=127.0.0.1:{port}"]
    log = (folder / "am.log").open("wb")
    process = subprocess.Popen([PROGRAM, *where, "--cluster.listen-address="], stdout=log, stderr=log)
    running = Alertmanager(f"http://127.0.0.1:{port}")
    try:
        eventually(lambda: is_up(f"{running.url}/-/ready"))
        yield running
    finally:
        process.terminate()
        process.wait()
        log.close()
