"""Hosts that exist only in a story: the same seam as real ones, so nothing behind it can tell."""

import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from collector.source import PlainSource, Reading
from lockstep.sim.telemetry import SimulatedTelemetry
from lockstep.wish import Wish


class SimulatedCluster:
    """One running story, shared by the sources of all its hosts; whoever reads first moves it on."""

    def __init__(self, telemetry: SimulatedTelemetry) -> None:
        self._telemetry = telemetry
        self._guard = threading.Lock()
        self._waiting: dict[str, list[dict[str, pa.Table]]] = {
            f"h{number}": [] for number in range(telemetry.simulation.story.cluster.hosts)
        }

    @property
    def hosts(self) -> list[str]:
        return list(self._waiting)

    def read_host(self, host: str, now_ns: int) -> Reading:
        """Return what the host has to say since it was last asked."""
        with self._guard:
            self._hand_out(self._telemetry.advance(now_ns))
            pieces, self._waiting[host] = self._waiting[host], []
            watermark_ns = self._telemetry.watermark_ns
        names = dict.fromkeys(name for piece in pieces for name in piece)
        tables = {name: pa.concat_tables([piece[name] for piece in pieces if name in piece]) for name in names}
        return Reading(tables, watermark_ns)

    def _hand_out(self, rows: dict[str, pa.Table]) -> None:
        for host, waiting in self._waiting.items():
            mine = {name: table.filter(pc.equal(table["host"], host)) for name, table in rows.items()}
            waiting.append({name: table for name, table in mine.items() if table.num_rows})


class SimulatedSource(PlainSource):
    """One host of a story."""

    name = "simulated"
    period_s = 1.0

    def __init__(self, cluster: SimulatedCluster, host: str) -> None:
        self._cluster = cluster
        self._host = host

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        return self._cluster.read_host(self._host, now_ns)
