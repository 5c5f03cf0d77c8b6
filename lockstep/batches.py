"""What travels from a collector to the gateway: tables as Arrow streams behind each other, compressed as a whole.

Every stream names its table in its schema's metadata. Types are exact and buffers plain, so that the size of what
comes out is known from the size of what went in: a small body cannot unpack into a large one behind our back.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import ConfigDict, Field

from lockstep.arrow import conform, schema_of
from lockstep.errors import BadBatch, BadRows
from lockstep.records import RECORDS_VERSION
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import Frozen

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
ENCODING = "zstd"
ACCEPTED_VERSIONS = range(max(1, RECORDS_VERSION - 1), RECORDS_VERSION + 1)  # ours and the one before it

AGENT_HEADER, BOOT_HEADER = "Lockstep-Agent", "Lockstep-Boot"
NUMBER_HEADER, VERSION_HEADER = "Lockstep-Number", "Lockstep-Version"

_TABLE_KEY = b"table"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # without it a stream that was cut between messages looks whole
_PIECE = 1 << 20  # most batches unpack into one
_KNOWN_SHAPES = 256  # some ten tables of the few releases that run at the same time
_LARGEST_KNOWN_SHAPE = 16 << 10  # bytes; ours have 1,400 at most. A larger one is read each time: memory is bounded


class BatchName(NamedTuple):
    """What an agent calls a batch, wherever it sends it; number counts from 1 in each boot."""

    agent: str
    boot: str
    number: int


def encode_batch(tables: Mapping[str, pa.Table]) -> bytes:
    """Return the body of a batch; the rows must have their tables' exact schemas."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, ENCODING) as packed:
        for name, rows in tables.items():
            schema = _named_schema(name)
            named = rows.replace_schema_metadata(schema.metadata) if rows.schema.equals(schema) else rows.cast(schema)
            with pa.ipc.new_stream(packed, schema) as stream:
                stream.write_table(named.combine_chunks())
    return bytes(sink.getvalue())


@cache
def _named_schema(name: str) -> pa.Schema:
    return schema_of(TABLE_BY_NAME[name]).with_metadata({_TABLE_KEY: name.encode()})


@dataclass(frozen=True)
class Shape:
    """Which table a stream is of and which columns it has; agents of one release send the same."""

    table: str
    columns: str  # a digest of their names and types
    schema: pa.Schema = field(compare=False, repr=False)


Pieces = dict[Shape, list[pa.RecordBatch]]  # a table of a batch is one record batch, or as many as its sender liked


def decode_batch(body: bytes, max_bytes: int, max_rows: int) -> dict[str, pa.Table]:
    """Return the tables of a batch, checked, or raise BadBatch with what is wrong about it."""
    pieces = read_batch(body, max_bytes, max_rows)
    return {shape.table: check_rows(shape.table, join(shape, rows)) for shape, rows in pieces.items()}


def check_rows(name: str, rows: pa.Table) -> pa.Table:
    """Return the rows of a table of one or many batches in its exact schema, or raise BadBatch."""
    try:
        return conform(TABLE_BY_NAME[name], rows)
    except BadRows as error:
        raise BadBatch(str(error)) from None


def join(shape: Shape, rows: list[pa.RecordBatch]) -> pa.Table:
    """Return the rows of one or many streams of one shape as a table."""
    return pa.Table.from_batches(rows, shape.schema)


def read_batch(body: bytes, max_bytes: int, max_rows: int) -> Pieces:
    """Return the tables of a batch as they came: whole and of known types; `check_rows` looks at what is in them."""
    plain = unpack_body(body, max_bytes)
    pieces: Pieces = {}
    names: set[str] = set()
    for shape, rows in _read_streams(plain):
        if shape.table in names:
            raise BadBatch(f"the batch holds {shape.table} twice")
        names.add(shape.table)
        pieces[shape] = rows
    if not pieces:
        raise BadBatch("the batch is empty")
    if sum(piece.num_rows for rows in pieces.values() for piece in rows) > max_rows:
        raise BadBatch(f"the batch holds more than {max_rows} rows", slug="too-large", status=413)
    return pieces


def unpack_body(body: bytes, max_bytes: int) -> bytes:
    """Return the body uncompressed; reading stops as soon as it grows beyond the limit."""
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), ENCODING) as stream:
            while piece := stream.read(_PIECE):  # not in one go: Arrow sets aside all that is asked for
                size += len(piece)
                if size > max_bytes:
                    break
                pieces.append(piece)
    except (pa.ArrowException, OSError) as error:
        raise BadBatch(f"the body is not {ENCODING}: {error}") from None
    if size > max_bytes:
        raise BadBatch(f"the body unpacks to more than {max_bytes >> 20} MiB", slug="too-large", status=413)
    return b"".join(pieces)


def _read_streams(plain: bytes) -> Iterator[tuple[Shape, list[pa.RecordBatch]]]:
    source = pa.BufferReader(plain)
    while source.tell() < len(plain):
        try:
            begin = source.tell()
            pa.ipc.read_message(source)
            message = plain[begin : source.tell()]
            shape = _known_shape(message) if len(message) <= _LARGEST_KNOWN_SHAPE else _shape_of(message)
            rows = list(_read_rows(shape, source, plain))
        except BadRows as error:
            raise BadBatch(str(error)) from None
        except (pa.ArrowException, OSError, EOFError, struct.error, ValueError) as error:
            reason = (str(error) or type(error).__name__).split("\n", 1)[0][:200]
            raise BadBatch(f"the body is not a sequence of whole Arrow streams: {reason}") from None
        yield shape, rows


def _shape_of(message: bytes) -> Shape:
    """Return what a stream's first message says, or raise BadRows when a column has not its table's type."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    name = (schema.metadata or {}).get(_TABLE_KEY, b"").decode("ascii", "replace")
    table = TABLE_BY_NAME.get(name)
    if table is None:
        raise BadBatch(f"there is no table {name!r}")
    wanted = schema_of(table)
    for column in schema:
        if column.name in wanted.names and column.type != wanted.field(column.name).type:
            raise BadRows(f"is {column.type}, not {wanted.field(column.name).type}", table=name, column=column.name)
    plain = schema.remove_metadata()
    return Shape(name, hashlib.sha256(plain.serialize()).hexdigest(), plain)


_known_shape = lru_cache(_KNOWN_SHAPES)(_shape_of)


def _read_rows(shape: Shape, source: pa.BufferReader, plain: bytes) -> Iterator[pa.RecordBatch]:
    while plain[source.tell() : source.tell() + len(_END_OF_STREAM)] != _END_OF_STREAM:
        if source.tell() == len(plain):
            raise ValueError(f"{shape.table} has no end")
        message = pa.ipc.read_message(source)
        if message.type != "record batch" or _has_compressed_buffers(bytes(message.metadata)):
            raise BadBatch("the streams must hold plain record batches, neither dictionaries nor compressed buffers")
        rows = pa.ipc.read_record_batch(message, shape.schema)
        rows.validate()  # that columns are equally long; check_rows looks into those that we know
        yield rows
    source.seek(len(_END_OF_STREAM), os.SEEK_CUR)


def _has_compressed_buffers(metadata: bytes) -> bool:
    """Return whether a message's flatbuffer says that its buffers are compressed.

    Arrow's Message has the record batch as its third field, and that the compression as its fourth.
    """
    message = _table_at(metadata, 0)
    header = _field(metadata, message, 2)
    return header is not None and _field(metadata, _table_at(metadata, header), 3) is not None


def _table_at(data: bytes, offset: int) -> int:
    return offset + int(struct.unpack_from("<I", data, offset)[0])


def _field(data: bytes, table: int, index: int) -> int | None:
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    length = int(struct.unpack_from("<H", data, vtable)[0])
    slot = 4 + 2 * index
    offset = int(struct.unpack_from("<H", data, vtable + slot)[0]) if slot < length else 0
    return table + offset if offset else None


class DetailRequest(Frozen):
    """One thing that a host's collector is asked to do."""

    model_config = ConfigDict(extra="ignore")  # an agent may be older than its server

    id: str
    host: str
    kind: str = Field(description="detail, lower, probe or last_minutes; an agent ignores what it does not know")
    details: dict[str, Any] = Field(description="which ranks, which path, how long; each kind has its own")
    expires_ns: int = Field(ge=0, description="UNIX time; from then on nobody wants it any more")


class Receipt(Frozen):
    """A batch is on the server's disk, and so is everything of its agent and boot up to the watermark."""

    model_config = ConfigDict(extra="ignore")  # an agent may be older than its server

    watermark: int = Field(ge=0)
    requests: tuple[DetailRequest, ...] = ()
