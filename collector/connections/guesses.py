"""Which NIC a process uses where nothing shows a connection of it: the graph of NCCL, the topology, the only NIC."""

from collections.abc import Iterable, Mapping

from collector.connections.graph import DeviceUse
from collector.connections.nics import HostNics
from collector.connections.rows import Flow, Key, Owner, row_of_nic
from lockstep.records import Connection, Direction, Transport

_GRAPH = 0.6  # the communicator that was made last has written it; others may differ
_TOPOLOGY = 0.5  # what was meant to be
_ONLY_NIC = 0.5  # that NCCL uses it, and not only what is inside of the host, is not known

_BOTH: tuple[Direction, ...] = ("send", "recv")


def rows_of_graph(
    owner: Owner, uses: Iterable[DeviceUse], names: Mapping[int, str], nics: HostNics, transport: Transport | None
) -> dict[Key, Connection]:
    """Return a row for each channel and direction whose device has a name; `transport` is the log's, if any."""
    rows: dict[Key, Connection] = {}
    for use in uses:
        name = names.get(use.device)
        if name is None:
            continue
        nic = nics.name_interface(name) if name not in nics.ports else nics.name_port(name)
        key = (*owner.key, "graph", use.channel, use.direction)
        flow = Flow(key, use.direction, transport or nics.transport_of(nic), nic, "graph", _GRAPH)
        rows[key] = row_of_nic(owner, flow, use.channel)
    return rows


def rows_of_nic(
    owner: Owner, gpus: Iterable[int | None], nics: HostNics, transport: Transport | None
) -> dict[Key, Connection]:
    """Return which NIC the topology gives to the GPUs of a process, else the only one that the host has."""
    found = {nics.nic_of_gpu(gpu) for gpu in gpus} - {None}
    nic = found.pop() if len(found) == 1 else None
    source, confidence = ("topology", _TOPOLOGY) if nic else ("only_nic", _ONLY_NIC)
    nic = nic or nics.only_nic()
    if nic is None:
        return {}
    flows = [
        Flow((*owner.key, "nic", way), way, transport or nics.transport_of(nic), nic, source, confidence)
        for way in _BOTH
    ]
    return {flow.key: row_of_nic(owner, flow) for flow in flows}
