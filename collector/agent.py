"""The agent of one host: every source on its own schedule, one batch a second, sent until acknowledged."""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence

import httpx
import pyarrow as pa
import structlog

from collector.gateway_client import GatewayClient
from collector.outbox import Outbox, Parcel
from collector.source import Reading, Source
from lockstep import __version__
from lockstep.arrow import rows_of
from lockstep.batches import encode_batch
from lockstep.clock import Clock
from lockstep.errors import LockstepError, NotPresent, ServerRefused
from lockstep.records import Agent as Heartbeat
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_log = structlog.get_logger("collector")

_BATCH_PERIOD_S = 1.0
_RETRY_S = 1.0
# What the server says about us, not about the batch: it may change its mind once a token or a clock is mended.
_PASSING_STATUS = frozenset({401, 403, 408, 429, 500, 502, 503, 504})


class CollectorAgent:
    """Reads the sources of one host and ships what they give; `start` and `close` frame its life."""

    def __init__(
        self, host: str, sources: Sequence[Source], server: str, token: str, clock: Clock, buffer_bytes: int
    ) -> None:
        self._host = host
        self._sources = sources
        self._clock = clock
        self._outbox = Outbox(buffer_bytes)
        self._client = GatewayClient(server, token, agent=host, boot=uuid.uuid4().hex)
        self._collected: dict[str, list[pa.Table]] = {}
        self._watermarks: dict[str, int] = {}
        self._wishes: tuple[Wish, ...] = ()
        self._guard = threading.Lock()  # over what was collected and how far
        self._stop = threading.Event()
        self._number = 0
        self._trouble: str | None = None
        self._threads = [
            *(
                threading.Thread(target=self._follow, args=(source,), name=f"{host}-{source.name}")
                for source in sources
            ),
            threading.Thread(target=self._pack, name=f"{host}-pack"),
            threading.Thread(target=self._ship, name=f"{host}-ship"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop reading, send what is left as long as the gateway takes it at once, and end the threads."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._pack_batch()
        while (parcel := self._outbox.first()) and self._send(parcel):
            pass
        self._client.close()

    def _follow(self, source: Source) -> None:
        """Read one source until the end; its faults stay its own."""
        while not self._stop.is_set():
            begin_ns = self._clock.monotonic_ns()
            try:
                self._take(source.name, source.read(self._clock.now_ns(), self._wishes))
            except NotPresent as absence:
                _log.info("source has nothing to read here", source=source.name, reason=str(absence))
                return
            except (LockstepError, OSError, ValueError) as error:
                _log.warning("source failed", source=source.name, error=str(error))
            spent_s = (self._clock.monotonic_ns() - begin_ns) / 1e9
            self._clock.wait(self._stop, max(source.period_s - spent_s, 0.0))

    def _take(self, source: str, reading: Reading) -> None:
        with self._guard:
            for name, rows in reading.tables.items():
                self._collected.setdefault(name, []).append(rows)
            self._watermarks[source] = reading.watermark_ns

    def _pack(self) -> None:
        while not self._clock.wait(self._stop, _BATCH_PERIOD_S):
            self._pack_batch()

    def _pack_batch(self) -> None:
        """Put everything collected so far, and a heartbeat, into the outbox as one batch."""
        with self._guard:
            collected, self._collected = self._collected, {}
            now_ns = self._clock.now_ns()
            watermark_ns = min(self._watermarks.values(), default=now_ns)
        tables = {name: pa.concat_tables(pieces) for name, pieces in collected.items()}
        tables["agents"] = self._heartbeat(now_ns, watermark_ns)
        self._number += 1
        self._outbox.put(Parcel(self._number, encode_batch(tables), _count(tables)))

    def _heartbeat(self, now_ns: int, watermark_ns: int) -> pa.Table:
        beat = Heartbeat(
            host=self._host,
            ts_ns=now_ns,
            version=__version__,
            watermark_ns=watermark_ns,
            dropped=self._outbox.dropped_rows,
            spool_bytes=self._outbox.bytes,
            cpu_ns=time.process_time_ns(),
            plugin_cost_ns=None,
        )
        return rows_of(TABLE_BY_NAME["agents"], [beat])

    def _ship(self) -> None:
        while not self._stop.is_set():
            parcel = self._outbox.first()
            if parcel is None:
                self._clock.wait(self._stop, _BATCH_PERIOD_S / 10)
            elif not self._send(parcel):
                self._clock.wait(self._stop, _RETRY_S)

    def _send(self, parcel: Parcel) -> bool:
        """Send one parcel and return whether it is done with, by a receipt or for good."""
        try:
            receipt = self._client.send(parcel.number, parcel.body)
        except httpx.TransportError as error:
            self._report(f"the gateway does not answer: {error}")
            return False
        except ServerRefused as error:
            self._report(f"the gateway refuses: {error}")
            if error.status in _PASSING_STATUS:
                return False
            self._outbox.refuse(parcel)
            return True
        self._outbox.remove(parcel)
        self._wishes = receipt.wishes
        self._report(None)
        return True

    def _report(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble != self._trouble:
            if trouble:
                _log.warning("batches wait", host=self._host, reason=trouble)
            else:
                _log.info("batches are taken again", host=self._host)
        self._trouble = trouble


def _count(tables: Mapping[str, pa.Table]) -> int:
    return sum(rows.num_rows for rows in tables.values())
