"""The file that tells a net plugin which UDP source port each RoCE queue pair should have; advice, and marked so.

Stock NCCL takes no source port for a queue pair from anybody, so nothing of this is enforced or counted. A net plugin
that opens its own queue pairs can read it and ask the NIC for the port (mlx5dv_modify_qp_udp_sport of rdma-core). It
is text, like the file for sockets (path_file.py), beside which it lies:

    lockstep-queue-pairs 1 GENERATION LEASE_END advisory
    SOURCE DESTINATION PORT WEIGHT CONNECTION
    ...
    end ENTRIES

One line is one queue pair from an address of this host. Those to one DESTINATION are to be taken in their order, one
for each that is opened. WEIGHT, 0 to 1, is the share of its rate that the path of this port can give, so that bytes
can be shared out accordingly. CONNECTION is for people (job/communicator/ranks/channel/queue pair), with odd letters
as %XX. The file is replaced as a whole. A file that does not end with the number of its entries is cut short and
counts as none; so does one with another version.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.host_paths import HostPaths, PathChoice
from lockstep.path_file import replace_file

VERSION = 1
_MAGIC, _ADVISORY = "lockstep-queue-pairs", "advisory"


@dataclass(frozen=True, slots=True)
class QueuePair:
    """The port of one queue pair."""

    source: str
    destination: str
    port: int
    weight: float
    connection: str


@dataclass(frozen=True, slots=True)
class QueuePairAdvice:
    """What one file says."""

    generation: int
    lease_end_s: int
    queue_pairs: tuple[QueuePair, ...] = ()


def advise_queue_pairs(told: HostPaths) -> QueuePairAdvice:
    """Return the queue pairs of a host whose ports and addresses are known; none where switches choose the path."""
    pairs = [pair for choice in told.choices if told.is_enforceable for pair in _pairs_of(choice)]
    return QueuePairAdvice(told.generation, told.lease_end_ns // NS_PER_S, tuple(pairs))


def _pairs_of(choice: PathChoice) -> list[QueuePair]:
    """Return a connection's queue pair; ports behind the first only stand in for it, and are left out."""
    if choice.proto != "roce" or not (choice.source and choice.destination and choice.sports):
        return []
    weight = round(choice.weight, 3)
    return [QueuePair(choice.source, choice.destination, choice.sports[0], weight, choice.connection)]


def write_queue_pairs(path: Path, advice: QueuePairAdvice) -> None:
    """Replace the file, whole or not at all."""
    replace_file(path, dump_queue_pairs(advice))


def dump_queue_pairs(advice: QueuePairAdvice) -> bytes:
    """Return the advice as the bytes of its file.

    >>> pair = QueuePair("10.1.0.1", "10.1.0.2", 49152, 0.5, "job 1/c0/r0-r1/q0")
    >>> dump_queue_pairs(QueuePairAdvice(7, 90, (pair,))).decode().splitlines()[1]
    '10.1.0.1 10.1.0.2 49152 0.5 job%201/c0/r0-r1/q0'
    """
    lines = [
        f"{_MAGIC} {VERSION} {advice.generation} {advice.lease_end_s} {_ADVISORY}",
        *map(_dump_pair, advice.queue_pairs),
        f"end {len(advice.queue_pairs)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _dump_pair(pair: QueuePair) -> str:
    return f"{pair.source} {pair.destination} {pair.port} {pair.weight:g} {quote(pair.connection)}"


def parse_queue_pairs(written: bytes) -> QueuePairAdvice:
    """Return what a file says; BadInput where it is cut short, or none of ours."""
    lines = [line.split(" ") for line in written.decode(errors="replace").split("\n")]
    if len(lines) < 3 or lines.pop() != [""] or lines[-1] != ["end", str(len(lines) - 2)]:
        raise BadInput("a file of queue pairs is cut short")
    header, entries = lines[0], lines[1:-1]
    if header[:2] != [_MAGIC, str(VERSION)] or len(header) != 5:
        raise BadInput(f"a file of queue pairs does not begin with {_MAGIC} {VERSION}, generation and end of lease")
    try:
        pairs = tuple(
            QueuePair(a, b, int(port), float(weight), unquote(name)) for a, b, port, weight, name in entries
        )
        return QueuePairAdvice(int(header[2]), int(header[3]), pairs)
    except ValueError as error:
        raise BadInput(f"a file of queue pairs has a line that is none: {error}") from None
