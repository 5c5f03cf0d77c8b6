"""A real agent and the real API over a real socket: what a host reads ends up in the store, once."""

from pathlib import Path

import pytest

from collector import agent as agent_module
from collector import shipping
from collector.agent import CollectorAgent
from collector.shipping import GatewayClient, MemoryQueue
from collector.sources.links import LinksSource
from lockstep.batches import DetailRequest
from lockstep.state.incidents import add_detail_requests
from lockstep.store.store import Store
from tests.api.build import running_api
from tests.collector.sources.test_links import imitate_nic
from tests.collector.test_agent import AGES_S, NumberedSource
from tests.waiting import HastyClock, eventually


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the end wait for a reading that has begun, and for a server that is busy."""
    monkeypatch.setattr(agent_module, "_LAST_READ_S", AGES_S)
    monkeypatch.setattr(shipping, "_TIMEOUT_S", 60.0)


def test_what_a_host_reads_ends_up_in_the_store_once(tmp_path: Path, embedded_store: Store) -> None:
    imitate_nic(tmp_path / "root", "eth0")
    numbered = NumberedSource("numbered")
    request = DetailRequest(id="w1", host="h0", kind="detail", details={}, expires_ns=2**62)
    with running_api(tmp_path, embedded_store) as api:
        add_detail_requests(api.parts.control, request)
        agent = CollectorAgent(
            host="h0",
            sources=[numbered, LinksSource("h0", tmp_path / "root")],
            queue=MemoryQueue(1 << 20),
            destination=GatewayClient(str(api.client.base_url), api.make_token("ingest", "h0"), "h0"),
            clock=HastyClock(),
        )
        agent.start()
        eventually(lambda: numbered.requests == (request,) and numbered.reads >= 5)
        agent.close()
    reported = embedded_store.query("SELECT message FROM events ORDER BY ts_ns")["message"].to_pylist()
    assert reported == [str(number) for number in range(numbered.reads)]
    nics = embedded_store.query("SELECT DISTINCT host, nic, speed_mbps FROM nic_counters").to_pylist()
    assert nics == [{"host": "h0", "nic": "eth0", "speed_mbps": 200_000}]
    beats = embedded_store.query("SELECT max(dropped) AS dropped, count() > 1 AS several FROM agents").to_pylist()
    assert beats == [{"dropped": 0, "several": 1}]
