"""What one file tells of a fabric, with who says so: nodes, NICs and cables as they were seen, and nothing decided.

A parser gives a `Survey`; `joining` compares several and makes one topology of them. Names are as written: cleaning
them is the same for all formats and happens there too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.errors import BadInput
from lockstep.topology import Gpu, Kind, Routing, Tier


@dataclass(frozen=True, slots=True)
class Source:
    """A file, read: the name that complaints use, the node that it would be of by its name, and what is in it."""

    name: str
    node: str
    data: bytes

    def text(self) -> str:
        """Return the content as text, or raise BadInput."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{self.name}: byte {error.start} is not text") from None


class End(NamedTuple):
    """Where a cable ends; the port is None where only the node is told."""

    node: str
    port: str | None = None

    def __str__(self) -> str:
        return self.node if self.port is None else f"{self.node}/{self.port}"


@dataclass(frozen=True, slots=True)
class SeenNic:
    """A NIC, and what is known of it; None: not told."""

    id: str
    gbps: float | None = None
    guid: str | None = None  # of its card, as `guid_key` writes it: the same NIC may have another name elsewhere
    plane: int | None = None
    rail: int | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A host or a switch, and what a source says of it."""

    id: str
    source: str
    kind: Kind | None = None
    is_sure: bool = True  # of the kind; False: a source that knows better overrules
    tier: Tier | None = None
    rack: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[SeenNic, ...] = ()
    addresses: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SeenCable:
    """A cable as one of its ends, or an outsider, sees it."""

    near: End
    far: End
    source: str
    gbps: float | None = None
    up: bool = True

    @property
    def witness(self) -> str:
        """Who says so, as complaints have it: both ends of a cable may stand in one file."""
        return f"as {self.near} says in {self.source}"


@dataclass
class Survey:
    """All that one source tells; `assumed` and `complaints` are sentences for people."""

    source: str
    nodes: list[SeenNode] = field(default_factory=list)
    cables: list[SeenCable] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    routing: Routing | None = None

    def complain(self, sentence: str) -> None:
        self.complaints.append(f"{self.source}: {sentence}")


def guid_key(text: str) -> str | None:
    """Return a GUID in one form for both byte orders, or None where it is none.

    NCCL writes the card's GUID as it lies in memory, ibnetdiscover as people read it.

    >>> guid_key("0xf01cbc0103dd6838") == guid_key("3868dd0301bc1cf0")
    True
    """
    digits = text.lower().removeprefix("0x")
    if not 1 <= len(digits) <= 16 or set(digits) - set("0123456789abcdef") or not int(digits, 16):
        return None
    value = int(digits, 16).to_bytes(8, "big")
    return min(value, value[::-1]).hex()


def in_words(names: Iterable[str], most: int = 3) -> str:
    """Return a few names and how many more there are.

    >>> in_words(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
