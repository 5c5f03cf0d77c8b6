"""The text of `ibnetdiscover`: every InfiniBand switch and adapter with what is cabled to each of its ports.

A block is a `Switch` or `Ca` line and a line per cabled port. Nodes have a GUID and call themselves something:
switches "MF0;NAME:MODEL/PLACE", adapters "HOST NIC". Both ends of a cable tell of it, so that they can be compared.
Adapters to which nobody gave a name have the one of the factory, "MT4123 ConnectX6 Mellanox Technologies": their GUID
stands for NIC and host, and ports of one card are on one host.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from importers.topology.survey import End, SeenCable, SeenNic, SeenNode, Source, Survey, guid_key, in_words

# Signalling per lane as NCCL and the kernel count it, in Gbit/s.
_LANE_GBPS = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?')
_EXTRA = r"(?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?"  # number on the chassis, GUID of the port
_PORT = re.compile(rf'\[(\d+)\]{_EXTRA}\s+"([^"]+)"\[(\d+)\]{_EXTRA}\s*(#.*)?')
_RATE = re.compile(r"\b(\d{1,2})x([A-Z]{3}\d{0,2})\b")
_IMAGE = re.compile(r"sysimgguid=(\S+)")
_TABLES = (
    "InfiniBand follows the subnet manager's tables: routing is static, unless --routing adaptive says otherwise"
)
_FACTORY = re.compile(
    r"MT\d+\b|ConnectX|Mellanox|NVIDIA|BlueField", re.IGNORECASE
)  # what a name of the maker begins with
_AGGREGATION = "Aggregation Node"  # a part of a switch that adds up (SHARP) and shows itself as an adapter


@dataclass
class _Block:
    kind: str  # Switch, Ca or Rt
    guid: str
    description: str  # what it calls itself
    image: str | None  # GUID of its card or chassis
    ports: list[tuple[str, str, str, float | None]] = field(default_factory=list)  # own, far GUID, far, Gbit/s


def parse_ibnetdiscover(source: Source) -> Survey:
    """Return what the file tells."""
    survey = Survey(source.name, routing="static", assumed=[f"{source.name}: {_TABLES}"])
    blocks = _read_blocks(source.text(), survey)
    if not blocks and not survey.complaints:
        survey.complain("holds no switch and no adapter")
    for guid, times in Counter(block.guid for block in blocks).items():
        if times > 1:
            survey.complain(f"{guid} is described {times} times")
    kept = [block for block in blocks if block.kind != "Rt" and _AGGREGATION not in block.description]
    if left := len(blocks) - len(kept):
        survey.assumed.append(f"{source.name}: routers, and parts of switches that are no hosts, left out: {left}")
    names = _name_switches(kept) | _name_adapters(kept, survey)
    switches = [block for block in kept if block.kind == "Switch"]
    survey.nodes += [SeenNode(names[block.guid].node, source.name, "switch") for block in switches]
    survey.nodes += _hosts(kept, names, source.name)
    dropped = {block.guid for block in blocks} - {block.guid for block in kept}
    dropped |= _note_unknown(kept, names, dropped, survey)
    survey.cables += [
        SeenCable(_end(names, block.guid, port), _end(names, far, far_port), source.name, gbps)
        for block in kept
        for port, far, far_port, gbps in block.ports
        if far not in dropped
    ]
    return survey


@dataclass(frozen=True)
class _Name:
    node: str
    nic: str | None = None  # of an adapter
    first_port: str = ""  # of an adapter: it has the plain name, the others name:port, as in nccl_xml


_Names = Mapping[str, _Name]  # by GUID


def _read_blocks(text: str, survey: Survey) -> list[_Block]:
    blocks: list[_Block] = []
    image = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if head := _HEAD.match(bare):
            blocks.append(_Block(head[1], head[2], (head[3] or "").strip(), image))
            image = None
        elif bare.startswith("["):
            port = _PORT.fullmatch(bare)
            if port is None or not blocks:
                survey.complain(f"line {number}: is no port of a switch or an adapter: {bare[:60]!r}")
            else:
                blocks[-1].ports.append((port[1], port[2], port[3], _rate(port[4] or "")))
        elif found := _IMAGE.match(bare):
            image = found[1]
        elif bare.startswith(("Switch", "Ca", "Rt")):
            survey.complain(f"line {number}: cannot be understood: {bare[:60]!r}")
    return blocks


def _rate(comment: str) -> float | None:
    found = _RATE.search(comment.rpartition('"')[2])  # names may look like rates, and stand in quotes before
    lane_gbps = _LANE_GBPS.get(found[2]) if found else None
    return int(found[1]) * lane_gbps if found and lane_gbps and int(found[1]) else None


def _name_switches(blocks: Iterable[_Block]) -> dict[str, _Name]:
    """Give each switch the shortest of its names that no other switch has: NAME, NAME.PLACE, or its GUID."""
    options = {block.guid: _switch_names(block) for block in blocks if block.kind == "Switch"}
    taken = Counter(name for names in options.values() for name in set(names))
    return {guid: _Name(next((name for name in names if taken[name] == 1), guid)) for guid, names in options.items()}


def _switch_names(block: _Block) -> list[str]:
    name, colon, slot = block.description.rpartition(";")[2].partition(":")
    where = slot.partition("/")[2]
    options = [name, f"{name}.{where.replace('/', '.')}" if colon and where else "", block.guid]
    return [option for option in options if option and not option[0].isspace()]


def _name_adapters(blocks: Iterable[_Block], survey: Survey) -> dict[str, _Name]:
    """Give each adapter the host and NIC that it says; its GUID stands for both where that is no name of its own."""
    adapters = [block for block in blocks if block.kind == "Ca"]
    nameless = _find_nameless(adapters)
    first_of_card: dict[str, str] = {}
    for block in nameless:
        first_of_card.setdefault(block.image or block.guid, block.guid)
    if nameless:
        names = in_words(sorted({repr(block.description) for block in nameless}))
        survey.assumed.append(
            f"{survey.source}: {len(nameless)} adapters have no name of their own ({names}): each card is taken for "
            "a host, named by its GUID; name them on their hosts (rdma-ndd, or node_desc in sysfs) and import again"
        )
    hosts = {block.guid: first_of_card[block.image or block.guid] for block in nameless}
    return {block.guid: _name_adapter(block, hosts.get(block.guid)) for block in adapters}


def _find_nameless(adapters: Iterable[_Block]) -> list[_Block]:
    """Return the adapters that call themselves as the factory did, or as another one does."""
    times = Counter(
        block.description for block in adapters if " " in block.description
    )  # a host alone: its NICs have GUIDs
    return [block for block in adapters if times[block.description] > 1 or _FACTORY.match(block.description)]


def _name_adapter(block: _Block, host_by_guid: str | None) -> _Name:
    host, _, nic = (host_by_guid or block.description).partition(" ")
    first_port = min((port for port, _, _, _ in block.ports), key=int, default="")
    return _Name(host or block.guid, nic.strip() or block.guid, first_port)


def _hosts(blocks: Iterable[_Block], names: _Names, source: str) -> Iterable[SeenNode]:
    nics: dict[str, dict[str, SeenNic]] = defaultdict(dict)
    for block in (block for block in blocks if block.kind == "Ca"):
        host = names[block.guid].node
        for port, _, _, gbps in block.ports:
            nic = str(_end(names, block.guid, port).port)
            nics[host][nic] = SeenNic(nic, gbps, guid_key(block.image or ""))
    return [SeenNode(host, source, "host", nics=tuple(seen.values())) for host, seen in nics.items()]


def _note_unknown(blocks: Iterable[_Block], names: _Names, dropped: set[str], survey: Survey) -> set[str]:
    """Complain of cables to nodes that the file does not describe, and return the GUIDs of those."""
    unknown = {far: block for block in blocks for _, far, _, _ in block.ports if far not in names.keys() | dropped}
    aggregating = {far for far in unknown if far.startswith("H-")}
    if aggregating:
        survey.assumed.append(f"{survey.source}: adapters that are not described left out: {len(aggregating)}")
    for far in sorted(unknown.keys() - aggregating):
        survey.complain(f"{names[unknown[far].guid].node} is cabled to {far}, which is not described")
    return set(unknown)


def _end(names: _Names, guid: str, port: str) -> End:
    name = names[guid]
    if name.nic is None:
        return End(name.node, port)
    return End(name.node, name.nic if port == name.first_port else f"{name.nic}:{port}")
