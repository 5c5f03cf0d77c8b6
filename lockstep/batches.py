"""What travels from a collector to the gateway: tables as Arrow streams behind each other, compressed as a whole.

Every stream names its table in its schema's metadata. Types are exact and buffers plain, so that the size of what
comes out is known from the size of what went in: a small body cannot unpack into a large one behind our back.
"""

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from lockstep.arrow import conform, schema_of
from lockstep.errors import BadBatch, BadRows
from lockstep.records import RECORDS_VERSION
from lockstep.tables import TABLE_BY_NAME

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
ENCODING = "zstd"
ACCEPTED_VERSIONS = range(max(1, RECORDS_VERSION - 1), RECORDS_VERSION + 1)  # ours and the one before it

AGENT_HEADER, BOOT_HEADER = "Lockstep-Agent", "Lockstep-Boot"
NUMBER_HEADER, VERSION_HEADER = "Lockstep-Number", "Lockstep-Version"

_TABLE_KEY = b"table"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # without it a stream that was cut between messages looks whole
_PIECE = 1 << 20


def encode_batch(tables: Mapping[str, pa.Table]) -> bytes:
    """Return the body of a batch; the rows must have their tables' exact schemas."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, ENCODING) as packed:
        for name, rows in tables.items():
            schema = schema_of(TABLE_BY_NAME[name]).with_metadata({_TABLE_KEY: name.encode()})
            with pa.ipc.new_stream(packed, schema) as stream:
                stream.write_table(rows.cast(schema).combine_chunks())
    return bytes(sink.getvalue())


def decode_batch(body: bytes, max_bytes: int, max_rows: int) -> dict[str, pa.Table]:
    """Return the tables of a batch, checked, or raise BadBatch with what is wrong about it."""
    return {name: check_rows(name, rows) for name, rows in read_batch(body, max_bytes, max_rows).items()}


def check_rows(name: str, rows: pa.Table) -> pa.Table:
    """Return the rows of a table of one or many batches in its exact schema, or raise BadBatch."""
    try:
        return conform(TABLE_BY_NAME[name], rows)
    except BadRows as error:
        raise BadBatch(str(error)) from None


def read_batch(body: bytes, max_bytes: int, max_rows: int) -> dict[str, pa.Table]:
    """Return the tables of a batch as they came: whole and of known types; `check_rows` looks at what is in them."""
    plain = unpack_body(body, max_bytes)
    tables: dict[str, pa.Table] = {}
    for name, rows in _read_streams(plain):
        if name in tables:
            raise BadBatch(f"the batch holds {name} twice")
        tables[name] = rows
    if not tables:
        raise BadBatch("the batch is empty")
    if sum(rows.num_rows for rows in tables.values()) > max_rows:
        raise BadBatch(f"the batch holds more than {max_rows} rows", slug="too-large", status=413)
    return tables


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


def _read_streams(plain: bytes) -> Iterator[tuple[str, pa.Table]]:
    source = pa.BufferReader(plain)
    while source.tell() < len(plain):
        try:
            messages = pa.ipc.MessageReader.open_stream(source)
            schema = pa.ipc.read_schema(messages.read_next_message())
            name = (schema.metadata or {}).get(_TABLE_KEY, b"").decode("ascii", "replace")
            rows = _read_rows(name, schema, messages)
        except BadRows as error:
            raise BadBatch(str(error)) from None
        except (pa.ArrowException, OSError, StopIteration, struct.error, ValueError) as error:
            raise BadBatch(f"the body is not a sequence of whole Arrow streams: {_short(error)}") from None
        if plain[source.tell() - len(_END_OF_STREAM) : source.tell()] != _END_OF_STREAM:
            raise BadBatch(f"the body is not a sequence of whole Arrow streams: {name} has no end")
        yield name, rows


def _read_rows(name: str, schema: pa.Schema, messages: pa.ipc.MessageReader) -> pa.Table:
    table = TABLE_BY_NAME.get(name)
    if table is None:
        raise BadBatch(f"there is no table {name!r}")
    wanted = schema_of(table)
    for field in [] if schema.equals(wanted) else schema:  # the usual case at once: this is done for every batch
        if field.name in wanted.names and field.type != wanted.field(field.name).type:
            raise BadRows(f"is {field.type}, not {wanted.field(field.name).type}", table=name, column=field.name)
    batches = list(_read_batches(schema, messages))
    rows = pa.Table.from_batches(batches, schema)
    rows.validate()  # that columns are equally long; check_rows looks into those that we know
    return rows


def _read_batches(schema: pa.Schema, messages: pa.ipc.MessageReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type != "record batch" or _has_compressed_buffers(bytes(message.metadata)):
            raise BadBatch("the streams must hold plain record batches, neither dictionaries nor compressed buffers")
        yield pa.ipc.read_record_batch(message, schema)


def _has_compressed_buffers(metadata: bytes) -> bool:
    """Return whether a message's flatbuffer says that its buffers are compressed.

    Arrow's Message has the record batch as its third field, and that the compression as its fourth.
    """
    message = _table_at(metadata, 0)
    header = _field(metadata, message, 2)
    return header is not None and _field(metadata, _table_at(metadata, header), 3) is not None


def _table_at(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, index: int) -> int | None:
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    length = int(struct.unpack_from("<H", data, vtable)[0])
    slot = 4 + 2 * index
    offset = int(struct.unpack_from("<H", data, vtable + slot)[0]) if slot < length else 0
    return table + offset if offset else None


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0][:200]
