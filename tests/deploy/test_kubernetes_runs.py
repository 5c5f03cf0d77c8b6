"""The DaemonSet's pod as a plain process: its command and environment, a read-only root, the kubelet's question."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.collector.fake_gateway import FakeGateway
from tests.deploy.chart import Pod, make_pod
from tests.deploy.local_compose import READ_ONLY_ROOT
from tests.deploy.processes import LOCKSTEP, Running
from tests.testbed.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]

TOKEN = "lks_0123456789abcdef_" + "t" * 43


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as serving:
        yield serving


def start(pod: Pod, directory: Path) -> Running:
    state, token = directory / "state", directory / "token"
    state.mkdir(exist_ok=True)
    token.write_text(TOKEN)
    environment = pod.environment | {"LOCKSTEP_STATE_DIR": str(state), "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(token)}
    inside = ["sh", "-c", READ_ONLY_ROOT, "sh", str(state), "--", LOCKSTEP, *pod.container["args"]]
    return Running("collector", ["unshare", "--mount", *inside], environment, directory)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return b"lockstep_collector_away 0" in answer.read()
    except OSError:
        return False


def live_once(pod: Pod, directory: Path, gateway: FakeGateway) -> None:
    """Start the pod, let it send something, and stop it as the kubelet does."""
    before = len(gateway.received)
    collector = start(pod, directory)
    try:
        collector.wait_until(lambda: answers(pod.probe_url("livenessProbe")) and len(gateway.received) > before)
        assert collector.stop() == 0, collector.output
    finally:
        collector.kill()


def test_pod_starts_answers_sends_and_goes_on_after_its_renewal(tmp_path: Path, gateway: FakeGateway) -> None:
    node = {"spec.nodeName": "gpu-017", "status.hostIP": "127.0.0.1"}
    pod = make_pod({"server": gateway.url, "port": free_port()}, node)
    live_once(pod, tmp_path, gateway)
    live_once(pod, tmp_path, gateway)
    assert list((tmp_path / "state/spool").glob("*.batch")) == [], "all was sent"
    assert {(batch.agent, batch.token) for batch in gateway.received} == {("gpu-017", f"Bearer {TOKEN}")}
    assert len({batch.boot for batch in gateway.received}) == 2
