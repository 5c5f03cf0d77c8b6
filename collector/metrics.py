"""What the agent tells Prometheus about itself: each source, what waits, and what it costs."""

from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from collector.agent import CollectorAgent, Health
from lockstep import __version__
from lockstep.clock import NS_PER_S, Clock
from lockstep.plugin_summary import PluginSummary, summarize_plugins
from lockstep.sections import split_listen

_log = structlog.get_logger("metrics")

Measure = Callable[[Health], float]

_GAUGES: tuple[tuple[str, str, Measure], ...] = (
    ("duration_seconds", "How long the last read took", lambda health: health.last_s),
    ("success", "1 when the last read succeeded, also when there is nothing to read", lambda health: health.is_well),
    ("present", "1 when the host has what this source reads", lambda health: health.is_present),
)
_COUNTERS: tuple[tuple[str, str, Measure], ...] = (
    ("reads", "Reads", lambda health: health.reads),
    ("failures", "Reads that failed", lambda health: health.failures),
    ("cpu_seconds", "CPU time of reads", lambda health: health.cpu_s),
    ("rows", "Rows given", lambda health: health.rows),
    ("dropped_rows", "Rows that the source knows were lost", lambda health: health.dropped),
    ("folded_rows", "Rows folded into statistics instead of being sent", lambda health: health.folded),
)


class AgentMetrics(Collector):
    """Figures of one agent, taken when somebody asks."""

    def __init__(self, agent: CollectorAgent, clock: Clock) -> None:
        self._agent, self._clock = agent, clock

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("lockstep_build", "Release of Lockstep", {"version": __version__})
        for name, meaning, measure in _GAUGES:
            yield self._by_source(GaugeMetricFamily, name, meaning, measure)
        for name, meaning, measure in _COUNTERS:
            yield self._by_source(CounterMetricFamily, name, meaning, measure)
        stuck = "How long a read that has not ended is under way; 0 between reads"
        yield self._by_source(GaugeMetricFamily, "reading_seconds", stuck, self._reading_s)
        yield from self._shipping()
        yield from self._plugins()

    # Any: two classes, one use
    def _by_source(self, family: Any, name: str, meaning: str, measure: Measure) -> Metric:
        metric: Metric = family(f"lockstep_collector_source_{name}", meaning, labels=["source"])
        for follower in self._agent.followers:
            metric.add_metric([follower.source.name], float(measure(follower.health)))  # type: ignore[attr-defined]
        return metric

    def _reading_s(self, health: Health) -> float:
        since_ns = health.reading_since_ns
        return 0.0 if since_ns is None else (self._clock.monotonic_ns() - since_ns) / NS_PER_S

    def _shipping(self) -> Iterator[Metric]:
        shipper = self._agent.shipper
        yield _gauge("spool_bytes", "Bytes waiting to be sent", self._agent.waiting_bytes)
        yield _gauge("away", "1 while the last batch did not get through", shipper.is_away)
        yield _counter("sent_batches", "Batches that have their receipt", shipper.sent)
        yield _counter("sent_bytes", "Their size as sent", shipper.sent_bytes)
        yield _counter("send_failures", "Attempts that did not get through", shipper.failures)
        yield _counter("dropped_rows", "Rows lost, whatever the reason", self._agent.dropped_rows)
        lost = CounterMetricFamily("lockstep_collector_lost", "What was lost, by reason", labels=["reason"])
        for reason, count in sorted(self._agent.lost.items()):
            lost.add_metric([reason], float(count))
        yield lost

    def _plugins(self) -> Iterator[Metric]:
        plugins = summarize_plugins([each for one in self._agent.followers for each in one.health.plugins])
        ranks = GaugeMetricFamily("lockstep_plugin_ranks", "Ranks that are recorded, by level", labels=["level"])
        for level, count in plugins.levels.items():
            ranks.add_metric([level], float(count))
        yield ranks
        for name, value in plugins.model_dump(exclude={"levels"}).items():
            meaning = PluginSummary.model_fields[name].description or name
            yield GaugeMetricFamily(f"lockstep_plugin_{name}", meaning, value=float(value))


def serve_metrics(agent: CollectorAgent, listen: str, clock: Clock) -> Callable[[], None]:
    """Serve /metrics until the returned function is called; a port that is taken is no reason not to collect."""
    registry = CollectorRegistry()
    registry.register(AgentMetrics(agent, clock))
    ProcessCollector(namespace="lockstep_collector", registry=registry)
    host, port = split_listen(listen)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        _log.warning("no metrics are served", listen=listen, error=str(error))
        return lambda: None

    def stop(server: WSGIServer = server) -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"lockstep_collector_{name}", meaning, value=float(value))


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"lockstep_collector_{name}", meaning, value=float(value))
