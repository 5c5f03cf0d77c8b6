"""One request to an exporter, bounded in time and memory whatever answers.

Memory: one piece of 64 KiB as it came, one of 1 MiB unpacked, one line, and the lines that are kept. Time:
`timeout_s` from the first byte sent to the last one read, and once more where a single read hangs at its end.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from re import Pattern
from typing import TYPE_CHECKING

from collector.switches.targets import Target
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadInput

if TYPE_CHECKING:  # whoever scrapes loads it; other agents go without its megabytes
    import httpx

MOST_KEPT_BYTES = 32 << 20  # about 200,000 samples
_MOST_LINE_BYTES = 64 << 10
_UNPACKED_PIECE = 1 << 20
_ACCEPT = (
    "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"  # the strict form is slower to read
)


@dataclass(frozen=True)
class Exposition:
    """The lines of an answer that somebody wants."""

    text: str
    is_openmetrics: bool


def scrape(client: "httpx.Client", target: Target, wanted: Pattern[bytes], clock: Clock) -> Exposition:
    """Return what the exporter says, or raise BadInput or an error of httpx or of the system."""
    deadline_ns = clock.monotonic_ns() + int(target.timeout_s * NS_PER_S)
    with client.stream("GET", target.url, headers=_headers(target)) as answer:
        if answer.status_code != HTTPStatus.OK:
            raise BadInput(f"it answers with status {answer.status_code}")
        # Pieces as they come, at most 64 KiB: asked for a size, httpx would wait for one beyond the deadline.
        raw = _until(answer.iter_raw(), deadline_ns, clock)
        plain = _bounded(_unpacked(raw, answer.headers.get("Content-Encoding", "identity")), target.max_mb << 20)
        kept = b"\n".join(_kept(plain, wanted))
        is_openmetrics = answer.headers.get("Content-Type", "").startswith("application/openmetrics-text")
    try:
        return Exposition(kept.decode() + "\n", is_openmetrics)
    except UnicodeDecodeError:
        raise BadInput("its answer is not text") from None


def _headers(target: Target) -> dict[str, str]:
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip"}
    if target.authorization_file:
        headers["Authorization"] = target.authorization_file.read_text(encoding="ascii").strip()
    return headers


def _until(pieces: Iterable[bytes], deadline_ns: int, clock: Clock) -> Iterator[bytes]:
    """Pass pieces on until the deadline: one that comes byte by byte never runs into the time-out of a read."""
    for piece in pieces:
        if clock.monotonic_ns() > deadline_ns:
            raise BadInput("its answer took too long")
        yield piece


def _unpacked(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    if encoding == "identity":
        yield from pieces
        return
    if encoding != "gzip":
        raise BadInput(f"its answer is packed as {encoding[:20]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(wbits=31)  # gzip
    try:
        for piece in pieces:
            while piece:
                yield unpacker.decompress(piece, _UNPACKED_PIECE)
                piece = unpacker.unconsumed_tail
            if unpacker.eof:  # whatever stands behind the end would only fill the memory
                break
        yield unpacker.flush()
    except zlib.error as error:
        raise BadInput(f"its answer cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise BadInput("its answer was cut off")


def _bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise BadInput(f"its answer is larger than {most >> 20} MiB")
        yield piece


def _kept(pieces: Iterable[bytes], wanted: Pattern[bytes]) -> Iterator[bytes]:
    """Pass on the lines that somebody wants, of whole lines only."""
    rest, kept = b"", 0
    for piece in pieces:
        whole, newline, tail = piece.rpartition(b"\n")
        if not newline:
            rest += tail
            lines = b""
        else:
            lines, rest = rest + whole, tail
        if len(rest) > _MOST_LINE_BYTES:
            raise BadInput(f"a line of its answer is longer than {_MOST_LINE_BYTES >> 10} KiB")
        for found in wanted.finditer(lines):
            kept += len(found[0])
            if kept > MOST_KEPT_BYTES:
                raise BadInput(f"it serves more than {MOST_KEPT_BYTES >> 20} MiB of what the profile wants")
            yield found[0]
    yield from (found[0] for found in wanted.finditer(rest))
