"""The two messages by which collectors compare their clocks: a question and an answer of the same size.

Both are 72 bytes, so that nobody can make a responder send more than it was sent. A keyed code over the whole message
shows that its sender knows the cluster's key; an answer carries the nonce of its question, so that an old one cannot
be played again. The answer also says what the responder knows of its own clock, so that offsets can be added up.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass

_MAGIC, _VERSION = b"LSCK", 1
_QUESTION, _ANSWER = 1, 2
_BODY = struct.Struct("!4sBBxxQ8sqqqq")  # magic, version, kind, nonce, reference, t2, t3, offset, error
_CODE_BYTES = 16  # of HMAC-SHA256; half of it leaves a forger 2^128 tries
MESSAGE_BYTES = _BODY.size + _CODE_BYTES
_LAST_NS = 1 << 62  # the year 2116; with these two, sums of a time and an offset still fit into 64 bits
MOST_APART_NS = 1 << 61  # 73 years


@dataclass(frozen=True, slots=True)
class Reply:
    """What a responder says."""

    nonce: int
    received_ns: int  # on the responder's clock
    sent_ns: int
    offset_ns: int  # the responder's clock minus the reference
    error_ns: int  # bound on the error of that


class ClockWire:
    """Reads and writes messages of one cluster: those that share key and reference clock."""

    def __init__(self, key: bytes, reference: str) -> None:
        self._key = key
        self._reference = hashlib.sha256(reference.encode()).digest()[:8]

    def write_question(self, nonce: int) -> bytes:
        return self._seal(_QUESTION, nonce, 0, 0, 0, 0)

    def read_question(self, message: bytes) -> int | None:
        """Return the nonce of a question that is meant for us, or None."""
        fields = self._unseal(_QUESTION, message)
        return fields[0] if fields else None

    def write_reply(self, reply: Reply) -> bytes:
        times = (reply.received_ns, reply.sent_ns, reply.offset_ns, reply.error_ns)
        return self._seal(_ANSWER, reply.nonce, *times)

    def read_reply(self, message: bytes) -> Reply | None:
        """Return an answer that is meant for us and makes sense, or None."""
        fields = self._unseal(_ANSWER, message)
        if fields is None:
            return None
        reply = Reply(*fields)
        are_times = 0 <= reply.received_ns <= reply.sent_ns <= _LAST_NS
        is_offset = abs(reply.offset_ns) <= MOST_APART_NS and 0 <= reply.error_ns <= MOST_APART_NS
        return reply if are_times and is_offset else None

    def _seal(self, kind: int, *fields: int) -> bytes:
        nonce, *times = fields
        body = _BODY.pack(_MAGIC, _VERSION, kind, nonce, self._reference, *times)
        return body + self._code(body)

    def _unseal(self, kind: int, message: bytes) -> tuple[int, int, int, int, int] | None:
        if len(message) != MESSAGE_BYTES:
            return None
        body, code = message[: _BODY.size], message[_BODY.size :]
        if not hmac.compare_digest(code, self._code(body)):
            return None
        magic, version, found, nonce, reference, *times = _BODY.unpack(body)
        if (magic, version, found, reference) != (_MAGIC, _VERSION, kind, self._reference):
            return None
        received_ns, sent_ns, offset_ns, error_ns = times
        return nonce, received_ns, sent_ns, offset_ns, error_ns

    def _code(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_CODE_BYTES]
