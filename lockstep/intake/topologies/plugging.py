"""Which NIC of a host each cable is in, where that is told only in part."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count

from lockstep.intake.topologies.cables import Cable
from lockstep.intake.topologies.nodes import KnownNode
from lockstep.intake.topologies.survey import End, SeenNic, in_words


@dataclass
class Draft:
    """A fabric while it is put together."""

    nodes: dict[str, KnownNode]
    cables: list[Cable]
    assumed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def is_host(self, end: End) -> bool:
        return self.nodes[end.node].kind == "host"


def plug_hosts(draft: Draft) -> None:
    """Give every cable of a host its NIC: the one that is told, else the one that is left, else a new one."""
    open_cables: dict[str, list[Cable]] = defaultdict(list)
    for cable in draft.cables:
        for end in (cable.a, cable.b):
            if draft.is_host(end) and end.port is None:
                open_cables[end.node].append(cable)
            elif draft.is_host(end):
                draft.nodes[end.node].nics.setdefault(str(end.port), SeenNic(str(end.port)))
    used = {end for cable in draft.cables for end in (cable.a, cable.b)}
    invented = []
    for host, cables in open_cables.items():
        free = [nic for nic in draft.nodes[host].nics if End(host, nic) not in used]
        if free:
            _plug_known(draft, host, cables, free)
        else:
            invented.append(host)
            _plug_new(draft, host, cables)
    if invented:
        draft.assumed.append(
            f"NICs are not told: one per cable is assumed, called nic0 and so on: {in_words(invented)}"
        )
    _say_uncabled(draft)


def _plug_known(draft: Draft, host: str, cables: list[Cable], free: list[str]) -> None:
    if len(free) == len(cables):
        for cable, nic in zip(cables, free, strict=True):
            _set_port(cable, host, nic)
        if len(free) > 1:
            draft.assumed.append(f"which NIC of {host} has which cable is not told: taken in order")
    elif len(cables) == 1:
        # One leaf is told for the whole host, so all its NICs go there.
        whole = cables[0]
        copies = [Cable(whole.a, whole.b, whole.seen) for _ in free[1:]]
        draft.cables += copies
        for cable, nic in zip((whole, *copies), free, strict=True):
            _set_port(cable, host, nic)
        leaf = whole.b.node if whole.a.node == host else whole.a.node
        draft.assumed.append(f"which NICs of {host} go to {leaf} is not told: all {len(free)} are taken to")
    else:
        draft.complaints.append(
            f"host {host} has {len(free)} NICs without a cable and {len(cables)} cables without a NIC: "
            "which belong together is not told"
        )


def _plug_new(draft: Draft, host: str, cables: list[Cable]) -> None:
    nics = draft.nodes[host].nics
    for cable in cables:
        nic = next(name for name in (f"nic{number}" for number in count()) if name not in nics)
        nics[nic] = SeenNic(nic)
        _set_port(cable, host, nic)


def _set_port(cable: Cable, host: str, nic: str) -> None:
    if cable.a == End(host):
        cable.a = End(host, nic)
    else:
        cable.b = End(host, nic)


def _say_uncabled(draft: Draft) -> None:
    used = {end for cable in draft.cables for end in (cable.a, cable.b)}
    hosts = [node for node in draft.nodes.values() if node.kind == "host"]
    bare = [str(End(host.id, nic)) for host in hosts for nic in host.nics if End(host.id, nic) not in used]
    if bare:
        draft.assumed.append(f"no cable is told for {len(bare)} NICs: {in_words(bare)}")
