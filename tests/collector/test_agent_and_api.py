"""A real agent and the real API over a real socket: what a host reads ends up in the store, once."""

from pathlib import Path

import pytest

from collector import agent as agent_module
from collector import gateway_client
from collector.agent import CollectorAgent
from collector.gateway_client import GatewayClient
from collector.outbox import MemoryOutbox
from collector.sources.links import LinksSource
from lockstep.control.wishes import add_wish
from lockstep.store.store import Store
from lockstep.wish import Wish
from tests.api.build import running_api
from tests.collector.sources.test_links import imitate_nic
from tests.collector.test_agent import AGES_S, NumberedSource
from tests.waiting import HastyClock, eventually


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the end wait for a reading that has begun, and for a server that is busy."""
    monkeypatch.setattr(agent_module, "_LAST_READ_S", AGES_S)
    monkeypatch.setattr(gateway_client, "_TIMEOUT_S", 60.0)


def test_what_a_host_reads_ends_up_in_the_store_once(tmp_path: Path, embedded_store: Store) -> None:
    imitate_nic(tmp_path / "root", "eth0")
    numbered = NumberedSource("numbered")
    wish = Wish(id="w1", host="h0", kind="detail", details={}, expires_ns=2**62)
    with running_api(tmp_path, embedded_store) as api:
        add_wish(api.parts.control, wish)
        agent = CollectorAgent(
            host="h0",
            sources=[numbered, LinksSource("h0", tmp_path / "root")],
            outbox=MemoryOutbox(1 << 20),
            destination=GatewayClient(str(api.client.base_url), api.make_token("ingest", "h0"), "h0"),
            clock=HastyClock(),
        )
        agent.start()
        eventually(lambda: numbered.wishes == (wish,) and numbered.reads >= 5)
        agent.close()
    told = embedded_store.query("SELECT message FROM events ORDER BY ts_ns")["message"].to_pylist()
    assert told == [str(number) for number in range(numbered.reads)]
    nics = embedded_store.query("SELECT DISTINCT host, nic, speed_mbps FROM nic_counters").to_pylist()
    assert nics == [{"host": "h0", "nic": "eth0", "speed_mbps": 200_000}]
    beats = embedded_store.query("SELECT max(dropped) AS dropped, count() > 1 AS several FROM agents").to_pylist()
    assert beats == [{"dropped": 0, "several": 1}]
