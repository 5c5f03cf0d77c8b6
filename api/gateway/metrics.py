"""What the gateway counts about itself."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class GatewayMetrics:
    """Counters of one gateway, in a registry of their own so that several can live in one process."""

    def __init__(self, backlog_bytes: Callable[[], float], is_stuck: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self._batches = Counter(
            "lockstep_ingest_batches", "Batches by what became of them", ["result"], registry=self.registry
        )
        self._rows = Counter("lockstep_ingest_rows", "Rows that reached the store", registry=self.registry)
        backlog = Gauge("lockstep_ingest_backlog_bytes", "Acknowledged, not in the store yet", registry=self.registry)
        backlog.set_function(backlog_bytes)
        stuck = Gauge("lockstep_ingest_stuck", "1 while the store takes nothing", registry=self.registry)
        stuck.set_function(lambda: float(is_stuck()))

    def accepted(self, fresh: int, repeated: int) -> None:
        self._batches.labels("accepted").inc(fresh)
        self._batches.labels("repeated").inc(repeated)

    def refused(self, count: int) -> None:
        self._batches.labels("refused").inc(count)

    def inserted(self, rows: int) -> None:
        self._rows.inc(rows)

    def set_aside(self) -> None:
        self._batches.labels("set_aside").inc()
