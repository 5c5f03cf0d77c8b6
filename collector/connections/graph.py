"""Which network device each channel of a host uses, from the files that NCCL_GRAPH_DUMP_FILE names.

Every channel is a list of GPUs between the device at which data comes in and the one at which it goes out. NCCL
writes the file for one rank only, and numbers the devices; the dump of the topology (NCCL_TOPO_DUMP_FILE) has their
names. Both are files of the job: small, and without the tricks that XML has for growing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from lockstep.errors import BadInput
from lockstep.records import Direction

GRAPH_BYTES = 1 << 20  # NCCL writes 30 KB for 8 GPUs and 32 channels
_RING = "0"  # the graph of rings; those of trees use the same devices in another order
_MOST_CHANNELS = 256
_MOST_DEVICE = 4_096


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A channel uses a device in one direction."""

    channel: int
    direction: Direction
    device: int


def parse_graph(content: bytes) -> list[DeviceUse]:
    """Return what the rings use; BadInput where it is no such file."""
    root = _parse(content)
    graph = next((graph for graph in root.iter("graph") if graph.get("id") == _RING), None)
    channels = list(graph.iter("channel"))[:_MOST_CHANNELS] if graph is not None else []
    return [use for number, channel in enumerate(channels) for use in _uses_of(number, channel)]


def parse_device_names(content: bytes) -> dict[int, str]:
    """Return the names of the devices in a dump of the topology; BadInput where it is no such file."""
    nets = [(_number(net.get("dev")), net.get("name")) for net in _parse(content).iter("net")]
    return {device: name[:64] for device, name in nets if device is not None and name and name.isprintable()}


def _parse(content: bytes) -> ElementTree.Element:
    if len(content) > GRAPH_BYTES:
        raise BadInput(f"has more than {GRAPH_BYTES} bytes")
    if b"<!" in content:  # NCCL writes none; a declaration could make the rest grow without end
        raise BadInput("has a declaration")
    try:
        return ElementTree.fromstring(content)  # noqa: S314 because without declarations there is nothing to expand
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadInput(f"is no XML: {error}") from None


def _uses_of(number: int, channel: ElementTree.Element) -> Iterator[DeviceUse]:
    parts = list(channel)
    if len(parts) < 3 or parts[0].tag != "net" or parts[-1].tag != "net":
        return  # a host that is alone needs no network
    into, out = _number(parts[0].get("dev")), _number(parts[-1].get("dev"))
    if into is not None and out is not None:
        yield DeviceUse(number, "recv", into)
        yield DeviceUse(number, "send", out)


def _number(text: str | None) -> int | None:
    is_number = bool(text) and text is not None and text.isascii() and text.isdecimal() and len(text) < 10
    return int(text) if text and is_number and int(text) < _MOST_DEVICE else None
