"""A Chrome trace read event by event: a file of gigabytes takes the memory of its largest event.

What stands beside `traceEvents` comes as a pair of key and value, in the order of the file.
"""

import codecs
import json
import zlib
from collections.abc import Iterable, Iterator

from lockstep.errors import BadInput

_MOST_VALUE_CHARS = 64 << 20  # of one event, or of one value beside them
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_DELIMITERS = tuple(_SPACE + ",]}")
_EVENTS = "traceEvents"


def read_trace(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[str, object]]:
    """Yield ("traceEvents", event) for each event and (key, value) for all else; whatever is wrong is a BadInput."""
    text = _Text(name, _decoded(name, _unpacked(name, pieces)))
    text.expect("{", "is no JSON object, as traces of PyTorch are")
    while not text.skips("}"):
        key = text.value("a key")
        text.expect(":", "is not JSON: ':' is missing")
        if key == _EVENTS:
            yield from ((_EVENTS, event) for event in _events(text))
        else:
            yield str(key), text.value(f"the value of {str(key)[:40]!r}")
        if not text.skips(","):
            text.expect("}", "is not JSON: ',' or '}' is missing")
            break
    text.expect_end()


def _events(text: "_Text") -> Iterator[object]:
    text.expect("[", f"{_EVENTS} is no list")
    number = 0
    while not text.skips("]"):
        number += 1
        yield text.value(f"{_EVENTS}, event {number}")
        if not text.skips(","):
            text.expect("]", f"{_EVENTS}, event {number}: is not JSON: ',' or ']' is missing behind it")
            return


class _Text:
    """The characters that are still to be read, as far as they are in memory."""

    def __init__(self, name: str, pieces: Iterator[str]) -> None:
        self._name, self._pieces = name, pieces
        self._text, self._place = "", 0
        self._is_whole = False  # nothing comes behind what is in memory

    def skips(self, sign: str) -> bool:
        """Go over white space, and over the sign where it is next; return whether it was."""
        self._skip_space()
        if not self._text.startswith(sign, self._place):
            return False
        self._place += 1
        return True

    def expect(self, sign: str, problem: str) -> None:
        if not self.skips(sign):
            ends = self._place >= len(self._text)
            raise BadInput(f"{self._name}: {'ends too early' if ends else problem}")

    def expect_end(self) -> None:
        self._skip_space()
        if self._place < len(self._text):
            raise BadInput(f"{self._name}: goes on behind its end")

    def value(self, what: str) -> object:
        """Return the next value; `what` says which it is, should it be none."""
        self._skip_space()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                if not self._grow():
                    raise BadInput(f"{self._name}: {what}: is not JSON: {_problem(error)}") from None
                continue
            if not self._may_go_on(value, end) or not self._grow():
                self._place = end
                return value

    def _may_go_on(self, value: object, end: int) -> bool:
        """Return whether the next piece may hold more of a number: all other values tell where they end."""
        return isinstance(value, int | float) and self._text[end : end + 1] not in _DELIMITERS

    def _skip_space(self) -> None:
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text) or not self._grow():
                return

    def _grow(self) -> bool:
        """Read on, as much again as is in memory, so that retries cost no more than reading; False at the end."""
        rest = self._text[self._place :]
        grown, wanted = [rest], max(len(rest), 1)
        if len(rest) > _MOST_VALUE_CHARS:
            return False
        while wanted > 0 and not self._is_whole:
            piece = next(self._pieces, None)
            self._is_whole = piece is None
            grown.append(piece or "")
            wanted -= len(grown[-1])
        self._text, self._place = "".join(grown), 0
        return len(self._text) > len(rest)


def _problem(error: Exception) -> str:
    return "it nests too deeply" if isinstance(error, RecursionError) else str(error).partition(":")[0]


def _decoded(name: str, pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in pieces:
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not text: {error.reason}") from None


def _unpacked(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack what is packed with gzip, as PyTorch writes traces whose name ends in .gz; the rest is passed on."""
    iterator = iter(pieces)
    first = next(iterator, b"")
    if first[:2] != b"\x1f\x8b":
        yield first
        yield from iterator
        return
    unpacker = zlib.decompressobj(wbits=31)
    piece: bytes | None = first
    try:
        while piece is not None:
            while piece:
                yield unpacker.decompress(piece, 1 << 20)
                piece = unpacker.unconsumed_tail
            piece = next(iterator, None)
        yield unpacker.flush()
    except zlib.error as error:
        raise BadInput(f"{name}: cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise BadInput(f"{name}: cannot be unpacked: it was cut off")
