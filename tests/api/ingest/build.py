"""Batches, entries and gateways for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from api.ingest.gateway import Gateway, GatewayOptions
from api.ingest.log import Entry
from lockstep.batches import encode_batch
from lockstep.records import Event
from lockstep.state.claims import BatchClaims
from lockstep.store.store import Store
from tests.builders import make, rows
from tests.waiting import HastyClock

PATIENT_S = 1e6
NOW_NS = HastyClock().now_ns()  # agents that were silent for a month are forgotten, so batches come today


def batch(*messages: str, host: str = "h0") -> bytes:
    return encode_batch({"events": rows(*(make(Event, host=host, message=message) for message in messages))})


def newer_batch(message: str, novelty: object = 1) -> bytes:
    """Return a batch of h0 from a release that has a column more than ours."""
    events = rows(make(Event, host="h0", message=message)).append_column("novelty", pa.array([novelty]))
    named = events.replace_schema_metadata({"table": "events"})
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed, pa.ipc.new_stream(packed, named.schema) as stream:
        stream.write_table(named)
    return bytes(sink.getvalue())


def entry(number: int, *messages: str, agent: str = "h0", boot: str = "b1", body: bytes | None = None) -> Entry:
    """Return a batch of an agent as the gateway logs it; by default its one event says whose and which it is."""
    told = messages or (f"{agent}/{boot}/{number}",)
    return Entry(agent, boot, number, NOW_NS, batch(*told, host=agent) if body is None else body)


@contextmanager
def running(
    directory: Path, store: Store, options: GatewayOptions | None = None, claims: BatchClaims | None = None
) -> Iterator[Gateway]:
    gateway = Gateway(directory, store, HastyClock(), options or GatewayOptions(leave_s=PATIENT_S), claims)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.close()
