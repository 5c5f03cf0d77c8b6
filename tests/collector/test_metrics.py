"""What Prometheus hears of an agent is what happened to it."""

import socket
import threading
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from collector.metrics import serve_metrics
from lockstep.errors import NotPresent
from tests.collector.fake_gateway import FakeGateway
from tests.collector.test_agent import NumberedSource, fail, hang, running
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, HastyClock, eventually


def scrape(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name.removeprefix("lockstep_collector_"), sample.labels.get("source", "")): sample.value
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


def test_port_that_is_taken_does_not_stop_the_agent() -> None:
    with socket.socket() as taken, FakeGateway() as gateway:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with running(NumberedSource("a"), server=gateway.url) as agent:
            serve_metrics(agent, f"127.0.0.1:{taken.getsockname()[1]}", HastyClock())()
            eventually(lambda: len(gateway.received) >= 2)
