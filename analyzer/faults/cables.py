"""The cable in a NIC: every wire through one runs through the other, so that only signs can tell them apart."""

from analyzer.signs.signs import Signs
from lockstep.topology import TopologyIndex, link_name, split_end
from lockstep.verdict import Side

_OTHER: dict[Side, Side] = {"tx": "rx", "rx": "tx"}


class Cables:
    """Names the cable of a NIC in verdicts, where the topology knows it."""

    def __init__(self, topology: TopologyIndex | None) -> None:
        self._topology = topology

    def cable_of(self, component: str, side: Side | None = None) -> tuple[str, Side | None] | None:
        """Return the cable in a NIC and its direction when the NIC sends or receives; None for what is no NIC."""
        kind, _, name = component.partition(":")
        host, nic = split_end(name)
        link = self._topology.host_link(host, nic) if self._topology and kind == "nic" and nic else None
        if link is None:
            return None
        is_from_nic = link.a == name
        return link_name(link), side if side is None or is_from_nic else _OTHER[side]

    def llr(self, signs: Signs, component: str, side: Side | None) -> float:
        """Return the weight of the signs of a part, or of its cable where they weigh more."""
        cable = self.cable_of(component, side)
        return max(signs.llr(component, side), signs.llr(*cable) if cable else -float("inf"))
