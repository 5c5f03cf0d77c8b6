"""What Prometheus hears of an agent is what happened to it."""

import socket
import threading
import urllib.request
from unittest.mock import Mock

from prometheus_client.parser import text_string_to_metric_families

from collector.agent import Health
from collector.metrics import AgentMetrics, serve_metrics
from lockstep.errors import NotPresent
from lockstep.records import PluginHealth
from tests.builders import make
from tests.collector.fake_gateway import FakeGateway
from tests.collector.test_agent import NumberedSource, fail, hang, running
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, HastyClock, eventually


def scrape(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name.removeprefix("lockstep_collector_"), "".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_source_and_the_path_out_are_accounted_for() -> None:
    let_go, port, clock = threading.Event(), free_port(), HastyClock()
    sources = [
        NumberedSource("well"),
        NumberedSource("ill", before=fail(OSError("broken"))),
        NumberedSource("absent", before=fail(NotPresent("no card"))),
        NumberedSource("hanging", before=hang(let_go)),
    ]
    with FakeGateway() as gateway, running(*sources, server=gateway.url, clock=clock) as agent:
        stop = serve_metrics(agent, f"127.0.0.1:{port}", clock)
        eventually(lambda: sources[0].reads >= 3 and sources[1].reads >= 3 and len(gateway.received) >= 3)
        eventually(lambda: sources[3].reads and not agent.followers[2].health.is_present)
        found = scrape(port)
        let_go.set()
        stop()
    assert found["source_rows_total", "well"] >= 2
    assert found["source_success", "well"] == 1
    assert (found["source_success", "ill"], found["source_failures_total", "ill"] >= 2) == (0, True)
    assert (found["source_present", "absent"], found["source_success", "absent"]) == (0, 1)
    assert found["source_reading_seconds", "hanging"] > found["source_reading_seconds", "absent"] == 0
    assert (found["away", ""], found["dropped_rows_total", ""]) == (0, 0)
    assert found["sent_batches_total", ""] >= 2
    assert found["sent_bytes_total", ""] > 0
    assert found["process_resident_memory_bytes", ""] > 0


def test_losses_are_one_metric_by_reason_and_plugins_are_told_by_their_worst() -> None:
    ranks = [make(PluginHealth, pid=pid, local_ranks=4, callback_ppm=pid) for pid in (1, 2)]
    ranks.append(make(PluginHealth, pid=3, local_ranks=4, level="operations", lowered="job", lost=7))
    agent = Mock(followers=[Mock(health=Health(plugins=ranks))], lost={"overwritten": 3, "untimed": 32})
    agent.configure_mock(waiting_bytes=0, dropped_rows=3)
    agent.shipper.configure_mock(is_away=False, sent=0, sent_bytes=0, failures=0)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in AgentMetrics(agent, HastyClock()).collect()
        for sample in family.samples
    }
    assert found["lockstep_collector_lost_total", "overwritten"] == 3
    assert found["lockstep_collector_lost_total", "untimed"] == 32
    assert (found["lockstep_plugin_ranks", "steps"], found["lockstep_plugin_ranks", "operations"]) == (2, 1)
    plain = {name[0].removeprefix("lockstep_plugin_"): value for name, value in found.items() if len(name) == 1}
    assert (plain["silent"], plain["lowered"], plain["lost_records"]) == (1, 1, 7)


def test_port_that_is_taken_does_not_stop_the_agent() -> None:
    with socket.socket() as taken, FakeGateway() as gateway:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with running(NumberedSource("a"), server=gateway.url) as agent:
            serve_metrics(agent, f"127.0.0.1:{taken.getsockname()[1]}", HastyClock())()
            eventually(lambda: len(gateway.received) >= 2)
