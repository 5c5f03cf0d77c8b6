"""Hosts that exist only in a scenario: the same seam as real ones, so nothing behind it can tell."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from collector.sources.source import PlainSource, Reading
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from simulator.telemetry import SimulatedTelemetry


@dataclass(frozen=True)
class _Batch:
    """Rows of one host on their way."""

    due_ns: int  # when the host hands them out
    since_ns: int  # the watermark before them
    tables: dict[str, pa.Table]


class SimulatedCluster:
    """One running scenario, shared by the sources of all its hosts; whoever reads first moves it on."""

    def __init__(self, telemetry: SimulatedTelemetry) -> None:
        scenario = telemetry.simulation.scenario
        self._telemetry = telemetry
        self._late_ns = scenario.telemetry.late_s * NS_PER_S
        self._random = np.random.default_rng(telemetry.simulation.seed)
        self._guard = threading.Lock()
        self._waiting: dict[str, list[_Batch]] = {f"h{number}": [] for number in range(scenario.cluster.all_hosts)}

    @property
    def hosts(self) -> list[str]:
        return list(self._waiting)

    def read_host(self, host: str, now_ns: int) -> Reading:
        """Return what the host has to say since it was last asked; late batches come in another order."""
        with self._guard:
            self._advance(now_ns)
            batches = self._waiting[host]
            self._waiting[host] = [batch for batch in batches if batch.due_ns > now_ns]
            watermark_ns = min((b.since_ns for b in self._waiting[host]), default=self._telemetry.watermark_ns)
        due = sorted((batch for batch in batches if batch.due_ns <= now_ns), key=lambda batch: batch.due_ns)
        names = dict.fromkeys(name for batch in due for name in batch.tables)
        tables = {name: pa.concat_tables([b.tables[name] for b in due if name in b.tables]) for name in names}
        return Reading(tables, watermark_ns)

    def _advance(self, now_ns: int) -> None:
        since_ns = self._telemetry.watermark_ns
        by_host: dict[str, dict[str, pa.Table]] = {}
        for name, table in self._telemetry.advance(now_ns).items():
            for host, rows in _split(table):
                by_host.setdefault(host, {})[name] = rows
        for host, tables in by_host.items():
            late_ns = int(self._random.uniform(0, self._late_ns)) if self._late_ns else 0
            self._waiting[host].append(_Batch(now_ns + late_ns, since_ns, tables))


def _split(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each host, in their order."""
    hosts = table["host"].combine_chunks().dictionary_encode()
    numbers = hosts.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(hosts.dictionary)))
    for host, end, begin in zip(hosts.dictionary.to_pylist(), ends, np.append(0, ends[:-1]), strict=True):
        yield host, table.take(pa.array(order[begin:end]))


class SimulatedSource(PlainSource):
    """One host of a scenario."""

    name = "simulated"
    period_s = 1.0

    def __init__(self, cluster: SimulatedCluster, host: str) -> None:
        self._cluster = cluster
        self._host = host

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        return self._cluster.read_host(self._host, now_ns)
