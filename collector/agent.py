"""The agent of one host: every source on its own schedule, batches when they are due, sent until acknowledged."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa

from collector.following import Follower
from collector.gathering import Gathering
from collector.lean import keep_freed_memory
from collector.parcel import Checkpoints, Destination, Outbox, Parcel
from collector.shipping import Shipper
from collector.source import Source
from lockstep import __version__
from lockstep.arrow import rows_of
from lockstep.batches import encode_batch
from lockstep.clock import NS_PER_S, Clock
from lockstep.records import Agent as Heartbeat
from lockstep.tables import TABLE_BY_NAME

# What ranks recorded is packed as soon as it was read, and all else with it; longer than between two such readings.
_BATCH_PERIOD_S = 2.5
_LAST_READ_S = 5.0  # how long the end waits for a source that hangs; it may hang in the kernel for ever


class CollectorAgent:
    """Reads the sources of one host and ships what they give; `start` and `close` frame its life."""

    def __init__(
        self,
        host: str,
        sources: Sequence[Source],
        outbox: Outbox,
        destination: Destination,
        clock: Clock,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """`checkpoints` are those of the last batch that an earlier agent of this host kept."""
        self._host, self._clock = host, clock
        self._outbox, self._destination = outbox, destination
        self._boot = uuid.uuid4().hex
        self._number = 0
        self._gathering = Gathering(checkpoints or {}, clock)
        self.shipper = Shipper(host, outbox, destination, clock)
        self.followers = [Follower(source, self._gathering, lambda: self.shipper.wishes, clock) for source in sources]
        for follower in self.followers:
            if checkpoints and follower.source.name in checkpoints:
                follower.resume(checkpoints[follower.source.name])
        self._stop = threading.Event()
        self._readers = [
            threading.Thread(
                target=follower.follow, args=(self._stop,), name=f"{host}-{follower.source.name}", daemon=True
            )
            for follower in self.followers
        ]
        self._senders = [
            threading.Thread(target=self._pack, name=f"{host}-pack"),
            threading.Thread(target=self.shipper.ship, args=(self._stop,), name=f"{host}-ship"),
        ]

    @property
    def dropped_rows(self) -> int:
        """Rows lost since the start, by sources that could not keep up or because too much waited."""
        return self._outbox.dropped_rows + self._gathering.dropped_rows

    @property
    def waiting_bytes(self) -> int:
        return self._outbox.bytes

    def start(self) -> None:
        keep_freed_memory()
        for thread in self._readers + self._senders:
            thread.start()

    def close(self) -> None:
        """Stop reading, send what is left as long as the gateway takes it at once, and end the threads."""
        self._stop.set()
        self._gathering.is_due.set()
        self.shipper.arrived.set()
        deadline_ns = self._clock.monotonic_ns() + int(_LAST_READ_S * NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._readers):
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._senders):
            thread.join()
        self._pack_batch()
        self.shipper.empty()
        self._destination.close()
        self._outbox.close()

    def _pack(self) -> None:
        while not self._stop.is_set():
            self._clock.wait(self._gathering.is_due, _BATCH_PERIOD_S)
            if not self._stop.is_set():
                self._pack_batch()

    def _pack_batch(self) -> None:
        """Put everything collected so far, and a heartbeat, into the outbox as one batch."""
        gathered = self._gathering.take()
        now_ns = self._clock.now_ns()
        watermark_ns = now_ns if gathered.watermark_ns is None else gathered.watermark_ns
        tables = dict(gathered.tables) | {"agents": self._heartbeat(now_ns, watermark_ns)}
        self._number += 1
        body = encode_batch(tables)
        self._outbox.put(Parcel(self._boot, self._number, body, _count(tables), gathered.checkpoints))
        self.shipper.arrived.set()

    def _heartbeat(self, now_ns: int, watermark_ns: int) -> pa.Table:
        beat = Heartbeat(
            host=self._host,
            ts_ns=now_ns,
            version=__version__,
            watermark_ns=watermark_ns,
            dropped=self.dropped_rows,
            spool_bytes=self.waiting_bytes,
            cpu_ns=time.process_time_ns(),
            plugin_cost_ns=self._gathering.plugin_cost_ns,
        )
        return rows_of(TABLE_BY_NAME["agents"], [beat])


def _count(tables: Mapping[str, pa.Table]) -> int:
    return sum(rows.num_rows for rows in tables.values())
