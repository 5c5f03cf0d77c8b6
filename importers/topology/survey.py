"""What one file tells of a fabric, with who says so: nodes, NICs and cables as they were seen, and nothing decided.

A parser gives a `Survey`; `joining` compares several and makes one topology of them. Names are as written: cleaning
them is the same for all formats and happens there too.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import yaml
from pydantic import BaseModel, ValidationError

from importers.traces.readings import decoded, parse_json
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
        return decoded(self.name, self.data)


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


def in_words(names: Iterable[str]) -> str:
    """Return a few names and how many more there are.

    >>> in_words(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more


_MOST_NAMES = 3  # in a sentence
_MOST_DEPTH = 200  # nobody nests deeper; Python stops at 1,000 calls
_MOST_PARTS = 1 << 18  # elements of an XML file: a host has some hundred

Shape = TypeVar("Shape", bound=BaseModel)


def read_json(source: Source) -> Any:  # Any: JSON of any shape
    """Return the value, or raise BadInput."""
    return parse_json(source.name, source.text())


def read_yaml(source: Source) -> Any:  # Any: YAML of any shape, all scalars as text
    """Return the value with every scalar as it is written (0145 stays 0145), or raise BadInput."""
    try:
        return yaml.load(source.text(), Loader=_Words)  # noqa: S506 because this loader makes nothing but text
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        words = getattr(error, "problem", None) or str(error).splitlines()[0]
        location = f" in line {mark.line + 1}" if mark else ""
        raise BadInput(f"{source.name}: is not YAML: {words}{location}") from None
    except (RecursionError, ValueError, TypeError) as error:
        raise BadInput(f"{source.name}: is not YAML: {str(error).splitlines()[0]}") from None


def read_xml(source: Source) -> Element:
    """Return the outermost element, or raise BadInput; what declares entities is refused before they are read."""
    parser = XMLParser(target=_Guard(source.name))  # noqa: S314 because the guard lets no entity be declared
    try:
        parser.feed(source.data)
        root: Element = parser.close()
    except (ParseError, ValueError, LookupError) as error:
        raise BadInput(f"{source.name}: is no XML: {error}") from None
    return root


def shaped(model: type[Shape], value: Any, source: Source) -> Shape:  # Any: as it was read
    """Return the value in this shape, or raise BadInput with everything that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        first = [f"{'.'.join(map(str, problem['loc'])) or 'all of it'}: {problem['msg']}" for problem in problems[:5]]
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise BadInput(f"{source.name}: {'; '.join(first)}{more}") from None
    except RecursionError:
        raise BadInput(f"{source.name}: is nested too deeply") from None


class _Words(yaml.BaseLoader):
    """Makes text, lists and mappings, and refuses a key that is there twice: the last would win without a word."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:  # Any: as PyYAML has it
        keys = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        for twice in (key for key, times in keys.items() if times > 1):
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Guard(TreeBuilder):
    """Builds elements, and stops where they are too many, too deep, or could grow without end."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._depth, self._count = name, 0, 0

    def start(self, tag: str, attributes: dict[str, str]) -> Element:
        self._count += 1
        self._depth += 1
        if self._depth > _MOST_DEPTH or self._count > _MOST_PARTS:
            raise BadInput(f"{self._name}: is nested too deeply or has more than {_MOST_PARTS:,} elements")
        return super().start(tag, attributes)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *_: object) -> None:  # entities can be declared nowhere else
        raise BadInput(f"{self._name}: declares a document type, which could make it grow without end")
