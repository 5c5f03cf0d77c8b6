"""NCCL's and RCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE): the inside of one host.

It tells GPUs, NICs with their rates, and how PCI joins them, so that each GPU gets the NICs nearest to it; of the
fabric it tells nothing. A file that a person wrote for a machine type often has PCI functions alone, without names.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from importers.topology.survey import SeenNic, SeenNode, Source, Survey, guid_key, read_xml
from lockstep.topology import Gpu

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, display, accelerator: all are used by GPUs
_NIC_CLASSES = ("0x0200", "0x0207")  # Ethernet, InfiniBand
_NUMBER = re.compile(r"[0-9]{1,5}")
_MBPS_PER_GBPS = 1000


@dataclass(frozen=True)
class _Device:
    """A GPU or a NIC with the elements above it, the outermost first, by their number in the file."""

    part: Element
    above: tuple[int, ...]
    bus: str  # PCI address of the function that it is, empty where none is told


def parse_nccl_xml(source: Source) -> Survey:
    """Return the host that the file describes, named after the file unless somebody said otherwise."""
    survey = Survey(source.name)
    root = read_xml(source)
    if root.tag != "system":
        survey.complain(f"is no topology of NCCL: it begins with <{root.tag[:40]}> and not with <system>")
        return survey
    devices = list(_walk(root, (), "", iter(range(1 << 30))))
    nics = _name_nics([device for device in devices if _is(device.part, "net", _NIC_CLASSES)], survey)
    gpus = _number_gpus([device for device in devices if _is(device.part, "gpu", _GPU_CLASSES)], survey)
    found = tuple(_gpu(index, device, nics) for index, device in gpus)
    survey.nodes.append(SeenNode(source.node, source.name, "host", gpus=found, nics=tuple(nic for nic, _ in nics)))
    return survey


_Nics = list[tuple[SeenNic, _Device]]


def _walk(part: Element, above: tuple[int, ...], bus: str, numbers: Iterator[int]) -> Iterator[_Device]:
    """Yield every element below, each function of PCI that has no element for what it is standing for that."""
    inner = (*above, next(numbers))
    for below in part:
        address = below.get("busid") or bus
        is_bare = not len(below) and _is(below, None, _GPU_CLASSES + _NIC_CLASSES)
        if below.tag in ("gpu", "net") or is_bare:
            # A bare function is itself the device: it stands where its <gpu> or <net> would.
            yield _Device(below, inner, address)
        else:
            yield from _walk(below, inner, address, numbers)


def _is(part: Element, tag: str | None, classes: tuple[str, ...]) -> bool:
    """Return whether an element is one of these: by its tag, or as a function of PCI by its class."""
    return part.tag == tag or (part.tag == "pci" and (part.get("class") or "").lower().startswith(classes))


def _name_nics(devices: list[_Device], survey: Survey) -> _Nics:
    lowest: dict[str, int] = {}
    for device in devices:
        lowest[_name(device)] = min(lowest.get(_name(device), _port(device)), _port(device))
    named = [(_nic(device, is_first=_port(device) == lowest[_name(device)]), device) for device in devices]
    for name, times in Counter(nic.id for nic, _ in named).items():
        if times > 1:
            survey.complain(f"has NIC {name} more than once")
    if nameless := [device for device in devices if not device.part.get("name")]:
        survey.assumed.append(f"{survey.source}: tells no name for {len(nameless)} NICs: called by their PCI address")
    return named


def _name(device: _Device) -> str:
    return device.part.get("name") or device.bus or "unnamed"


def _port(device: _Device) -> int:
    return int(number[0]) if (number := _NUMBER.fullmatch(device.part.get("port") or "")) else 0


def _nic(device: _Device, is_first: bool) -> SeenNic:
    # The first port has the plain name: cards with one are the rule, and everybody else calls them so.
    name = _name(device) if is_first else f"{_name(device)}:{_port(device)}"
    return SeenNic(name, _rate(device.part.get("speed")), guid_key(device.part.get("guid") or ""))


def _rate(speed_mbps: str | None) -> float | None:
    try:
        gbps = float(speed_mbps or "nan") / _MBPS_PER_GBPS
    except ValueError:
        return None
    return gbps if math.isfinite(gbps) and gbps > 0 else None


def _number_gpus(devices: list[_Device], survey: Survey) -> list[tuple[int, _Device]]:
    """Return GPUs with their NVML index: as told, else in the order of PCI addresses, which is NVML's."""
    given = [_NUMBER.fullmatch(device.part.get("dev") or "") for device in devices]
    if all(given):
        indices = [int(number[0]) for number in given if number]
        if len(set(indices)) < len(indices):
            survey.complain("has two GPUs with one number")
        return sorted(zip(indices, devices, strict=True), key=lambda pair: pair[0])
    survey.assumed.append(
        f"{survey.source}: tells no numbers of its GPUs: counted in the order of their PCI addresses"
    )
    return list(enumerate(sorted(devices, key=lambda device: device.bus.lower())))


def _gpu(index: int, device: _Device, nics: _Nics) -> Gpu:
    nearness = [_shared(device.above, other.above) for _, other in nics]
    best = max(nearness, default=0)
    return Gpu(
        id=f"gpu{index}",
        index=index,
        nics=tuple(nic.id for (nic, _), near in zip(nics, nearness, strict=True) if near == best),
    )


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many elements two places have above them in common: the more, the nearer on PCI."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
