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
from lockstep.arrow import rows_of, schema_of
from lockstep.batches import encode_batch
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadRows, NotPresent, ServerRefused
from lockstep.records import Agent as Heartbeat
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish

_log = structlog.get_logger("collector")

_BATCH_PERIOD_S = 1.0
_RETRY_S = 1.0
_LAST_READ_S = 5.0  # how long the end waits for a source that hangs; it may hang in the kernel for ever
# What the gateway says about a batch and would say again. Everything else is about us, or comes from something else
# that answers at this address, and may be mended: the batch waits.
_FINAL_STATUS = frozenset({400, 413, 415, 422})


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
        self._faults: dict[str, str | None] = {}
        self._wishes: tuple[Wish, ...] = ()
        self._guard = threading.Lock()  # over what was collected and how far
        self._stop = threading.Event()
        self._number = 0
        self._trouble: str | None = None
        self._readers = [
            threading.Thread(target=self._follow, args=(source,), name=f"{host}-{source.name}", daemon=True)
            for source in sources
        ]
        self._senders = [
            threading.Thread(target=self._pack, name=f"{host}-pack"),
            threading.Thread(target=self._ship, name=f"{host}-ship"),
        ]

    def start(self) -> None:
        for thread in self._readers + self._senders:
            thread.start()

    def close(self) -> None:
        """Stop reading, send what is left as long as the gateway takes it at once, and end the threads."""
        self._stop.set()
        deadline_ns = self._clock.monotonic_ns() + int(_LAST_READ_S * NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._readers):
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._senders):
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
                self._take(source.name, self._read(source))
                self._note(source.name, None)
            except NotPresent as absence:
                _log.info("source has nothing to read here", source=source.name, reason=str(absence))
                self._forget(source.name)
                return
            except Exception as error:  # noqa: BLE001  # whatever a source does, the others go on
                self._note(source.name, f"{type(error).__name__}: {error}")
            spent_s = (self._clock.monotonic_ns() - begin_ns) / NS_PER_S
            self._clock.wait(self._stop, max(source.period_s - spent_s, 0.0))

    def _read(self, source: Source) -> Reading:
        now_ns = self._clock.now_ns()
        wishes = tuple(wish for wish in self._wishes if wish.expires_ns > now_ns)
        return source.read(now_ns, wishes)

    def _note(self, source: str, fault: str | None) -> None:
        """Say it when it changes, not each time round."""
        if fault and fault != self._faults.get(source):
            _log.warning("source failed", source=source, error=fault)
        self._faults[source] = fault

    def _forget(self, source: str) -> None:
        """Let a source that rests hold up nobody's watermark."""
        with self._guard:
            self._watermarks.pop(source, None)

    def _take(self, source: str, reading: Reading) -> None:
        for name, rows in reading.tables.items():
            if rows.schema != schema_of(TABLE_BY_NAME[name]):  # it would spoil the batch of all the others
                raise BadRows("has another schema than its table", table=name)
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
        except httpx.RequestError as error:
            self._report(f"the gateway does not answer: {error}")
            return False
        except ServerRefused as error:
            self._report(f"the gateway refuses: {error}")
            if error.status not in _FINAL_STATUS:
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
