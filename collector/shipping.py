"""Sends what is packed, in order, until each batch has its receipt or is refused for good."""

import http.client
import json
import random
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
import structlog
from pydantic import ValidationError

from lockstep.batches import (
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
    DetailRequest,
    Receipt,
    decode_batch,
)
from lockstep.clock import Clock
from lockstep.config import trusted
from lockstep.errors import BadInput, DestinationAway, ServerRefused, StoreError
from lockstep.records import RECORDS_VERSION
from lockstep.tables import TABLE_BY_NAME, Table

Checkpoints = Mapping[str, bytes]  # by source


@dataclass(frozen=True)
class Batch:
    """An encoded batch; boot and number name it for good, so that sending it twice is noticed."""

    boot: str
    number: int
    body: bytes
    rows: int
    checkpoints: Checkpoints = field(default_factory=dict)  # how far the sources were when it was packed


class BatchQueue(Protocol):
    """A bounded queue between packing and sending: in order, the oldest dropped first and counted."""

    @property
    def bytes(self) -> int: ...

    @property
    def dropped_rows(self) -> int: ...

    def put(self, batch: Batch) -> None:
        """Add a batch at the end, making room at the front if need be; the newest always stays."""
        ...

    def first(self) -> Batch | None:
        """Return the oldest batch and leave it in its place."""
        ...

    def remove(self, batch: Batch) -> None:
        """Take out a batch that has its receipt, unless it was dropped meanwhile."""
        ...

    def refuse(self, batch: Batch) -> None:
        """Drop a batch that will never be taken, and count its rows as lost."""
        ...

    def close(self) -> None: ...


class Destination(Protocol):
    """Where batches go. DestinationAway: try again later. ServerRefused: the status says whether that would help."""

    @property
    def address(self) -> str | None:
        """Return host and port of the gateway; None where there is none."""
        ...

    def send(self, batch: Batch) -> Receipt: ...

    def close(self) -> None: ...


_log = structlog.get_logger("collector")

_POLL_S = 1.0  # at the latest, should nobody tell that something arrived
_RETRY_S, _LONGEST_RETRY_S = 1.0, 10.0  # twice as long after each failure; a gateway that is back is found soon
# What the gateway says about a batch and would say again. Everything else is about us, or comes from something else
# that answers at this address, and may be mended: the batch waits.
_FINAL_STATUS = frozenset({400, 413, 415, 422})


def backoff_s(failed: int, chance: float) -> float:
    """Return how long to wait after so many failures before; half of it by chance (0 to 1): hosts fail together.

    >>> [backoff_s(failed, 1.0) for failed in (0, 1, 9)], backoff_s(9, 0.0)
    ([1.0, 2.0, 10.0], 5.0)
    """
    return min(_RETRY_S * 2.0 ** min(failed, 16), _LONGEST_RETRY_S) * (1 + chance) / 2


class Shipper:
    """Takes batches from a queue to their destination; `detail requests` are those that came back last."""

    def __init__(self, host: str, queue: BatchQueue, destination: Destination, clock: Clock) -> None:
        self._host, self._queue, self._destination, self._clock = host, queue, destination, clock
        self._trouble: str | None = None
        self.requests: tuple[DetailRequest, ...] = ()
        self.sent = self.sent_bytes = self.failures = 0
        self._failed = 0  # attempts in a row
        self.arrived = threading.Event()  # something was put into the queue, or it is the end

    @property
    def is_away(self) -> bool:
        """Whether the last attempt did not get through."""
        return self._trouble is not None

    def ship(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.arrived.clear()
            batch = None if stop.is_set() else self._queue.first()
            if batch is None:
                self._clock.wait(self.arrived, _POLL_S)
            elif self._send(batch):
                self._failed = 0
            else:
                self._clock.wait(stop, backoff_s(self._failed, random.random()))  # noqa: S311  # no secret
                self._failed += 1

    def empty(self) -> None:
        """Send what is left as long as it is taken at once."""
        while (batch := self._queue.first()) and self._send(batch):
            pass

    def _send(self, batch: Batch) -> bool:
        """Send one batch and return whether it is done with, by a receipt or for good."""
        try:
            receipt = self._destination.send(batch)
        except DestinationAway as error:
            self._report(str(error))
            return False
        except ServerRefused as error:
            self._report(f"the gateway refuses: {error}")
            if error.status not in _FINAL_STATUS:
                return False
            self._queue.refuse(batch)
            return True
        self._queue.remove(batch)
        self.requests = receipt.requests
        self.sent += 1
        self.sent_bytes += len(batch.body)
        self._report(None)
        return True

    def _report(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        self.failures += trouble is not None
        if trouble != self._trouble:
            if trouble:
                _log.warning("batches wait", host=self._host, reason=trouble)
            else:
                _log.info("batches are taken again", host=self._host)
        self._trouble = trouble


class MemoryQueue:
    """A queue that is gone with its process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[Batch] = deque()
        self._guard = threading.Lock()
        self.bytes = 0
        self.dropped_rows = 0

    def put(self, batch: Batch) -> None:
        with self._guard:
            self._batches.append(batch)
            self.bytes += len(batch.body)
            while self.bytes > self._max_bytes and len(self._batches) > 1:
                self._drop_first()

    def first(self) -> Batch | None:
        with self._guard:
            return self._batches[0] if self._batches else None

    def remove(self, batch: Batch) -> None:
        with self._guard:
            if self._batches and self._batches[0] is batch:
                self._batches.popleft()
                self.bytes -= len(batch.body)

    def refuse(self, batch: Batch) -> None:
        with self._guard:
            if self._batches and self._batches[0] is batch:
                self._drop_first()

    def close(self) -> None:
        """Nothing is held."""

    def _drop_first(self) -> None:
        lost = self._batches.popleft()
        self.bytes -= len(lost.body)
        self.dropped_rows += lost.rows


_TIMEOUT_S = 10.0


class GatewayClient:
    """Sends batches of one agent, over one connection for as long as that holds."""

    def __init__(self, server: str, token: str, agent: str, ca_file: Path | None = None) -> None:
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": ENCODING,
            AGENT_HEADER: agent,
            VERSION_HEADER: str(RECORDS_VERSION),
        }
        if not (token.isascii() and agent.isascii()):
            raise BadInput(f"the token and the name of the host, {agent!r}, must be plain ASCII")
        url = _parse(server)
        self.address = f"{url.hostname}:{url.port}" if url.port else url.hostname
        self._path = url.path.rstrip("/") + "/api/v1/ingest"
        self._connection = _connection(url, ca_file)

    def send(self, batch: Batch) -> Receipt:
        """Return the receipt; ServerRefused when the server says no, DestinationAway when it says nothing."""
        headers = self._headers | {BOOT_HEADER: batch.boot, NUMBER_HEADER: str(batch.number)}
        try:
            status, content = self._post(batch.body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DestinationAway(f"the gateway does not answer: {str(error) or type(error).__name__}") from error
        if status != http.client.OK:
            raise ServerRefused(_detail(status, content), status)
        try:
            return Receipt.model_validate_json(content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ServerRefused(f"the server's receipt makes no sense: {reason}", status) from error

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the answer; what was sent may be sent again, so an old connection is tried."""
        is_old = self._connection.sock is not None
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
        except ConnectionError:  # RemoteDisconnected too: the server does not keep idle connections for ever
            self._connection.close()
            if not is_old:
                raise
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
        return answer.status, answer.read()


def _connection(url: SplitResult, ca_file: Path | None) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "http":
        return http.client.HTTPConnection(host, url.port, timeout=_TIMEOUT_S)
    context = trusted(ca_file, "collector.ca_file")
    return http.client.HTTPSConnection(host, url.port, timeout=_TIMEOUT_S, context=context)


def _parse(server: str) -> SplitResult:
    expected = "expected http(s)://host:port"
    try:
        url = urlsplit(server)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError as error:
        raise BadInput(f"{server!r} is not the address of a gateway: {error}; {expected}") from None
    if not is_address:
        raise BadInput(f"{server!r} is not the address of a gateway; {expected}")
    return url


def _detail(status: int, content: bytes) -> str:
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}"


_MOST = 1 << 40  # we packed it ourselves, so nothing has to be guarded against


class RowStore(Protocol):
    """Takes rows: the Store of lockstep.store, which agents with a gateway go without."""

    def insert(self, table: Table, rows: pa.Table, token: str) -> None: ...

    def close(self) -> None: ...


class StoreClient:
    """Inserts the batches of one agent straight into ClickHouse, without a gateway: for clusters of up to 50 hosts.

    Detail requests do not come this way, and nobody checks whose rows come.
    """

    address = None

    def __init__(self, store: RowStore, agent: str) -> None:
        self._store, self._agent = store, agent

    def send(self, batch: Batch) -> Receipt:
        """Insert table by table; what is repeated after a fault has the same tokens and changes nothing."""
        try:
            for name, rows in decode_batch(batch.body, _MOST, _MOST).items():
                token = f"{self._agent}/{batch.boot}/{batch.number}/{name}"
                self._store.insert(TABLE_BY_NAME[name], rows, token)
        except StoreError as error:
            raise DestinationAway(f"the store does not take rows: {error}") from error
        return Receipt(watermark=batch.number)

    def close(self) -> None:
        self._store.close()


def open_store_client(url: str, password: str, agent: str) -> StoreClient:
    try:
        store = import_module("lockstep.store.store")  # by name, for only these agents need its extra
    except ModuleNotFoundError as error:
        raise BadInput(f"collector.store_url needs {error.name}: pip install 'lockstep[collector,store]'") from None
    return StoreClient(store.open_store(url, password=password), agent)
