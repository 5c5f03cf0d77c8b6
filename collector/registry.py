"""Every source there is, in one place."""

from collections.abc import Callable, Sequence

from collector.probes.paths import addresses_in
from collector.probes.schedule import MeshOptions
from collector.sources.clocks import ClockOptions, ClocksSource
from collector.sources.connections import ConnectionsSource
from collector.sources.fabric import FabricSource
from collector.sources.gpu import GpuSource
from collector.sources.kernel_log import KernelLogSource
from collector.sources.links import LinksSource
from collector.sources.nccl_rings import NcclRingsSource
from collector.sources.probes import ProbeOptions, ProbesSource
from collector.sources.processes import ProcessesSource
from collector.sources.rdma import RdmaSource
from collector.sources.source import Source
from lockstep.config import read_secret
from lockstep.errors import BadInput
from lockstep.sections import CollectorSettings
from lockstep.topology import Topology, load_topology

# What makes a source: from the name of the host and the settings of its agent.
Make = Callable[[str, CollectorSettings], Source]


def make_probes(host: str, settings: CollectorSettings) -> ProbesSource:
    """Return the source that probes paths; one that is off says so when it is read."""
    mesh = MeshOptions(protos=settings.probe_protos, packets_per_s=settings.probe_packets_per_s)
    topology = _topology_of(settings)
    addresses = addresses_in(topology) if topology else {}
    return ProbesSource(host, topology, addresses, ProbeOptions(is_on=settings.probes, mesh=mesh))


def make_clocks(host: str, settings: CollectorSettings) -> ClocksSource:
    """Return the source that compares clocks; the kernel's own opinion is read in any case."""
    options = ClockOptions(
        is_on=settings.compare_clocks,
        reference=settings.clock_reference,
        key=read_secret(settings.clock_key_file, "the key for comparing clocks").encode(),
        port=settings.clock_port,
    )
    topology = _topology_of(settings)
    return ClocksSource(host, topology, addresses_in(topology) if topology else {}, options)


def _nics_of(host: str, settings: CollectorSettings) -> list[str]:
    """Return the NICs that the topology gives this host; none without one, or where it does not know the host."""
    topology = _topology_of(settings)
    known = [node for node in topology.hosts if node.id == host] if topology else []
    return [nic.id for node in known for nic in node.nics]


def _topology_of(settings: CollectorSettings) -> Topology | None:
    return load_topology(settings.topology) if settings.topology else None


SOURCES: tuple[tuple[str, Make], ...] = (
    ("nccl_rings", lambda host, settings: NcclRingsSource(host, directories=settings.ring_dirs)),
    ("connections", lambda host, settings: ConnectionsSource(host, topology=_topology_of(settings))),
    ("links", lambda host, settings: LinksSource(host, named=_nics_of(host, settings))),
    ("rdma", lambda host, _: RdmaSource(host)),
    ("gpu", lambda host, _: GpuSource(host)),
    ("kernel_log", lambda host, _: KernelLogSource(host)),
    ("processes", lambda host, settings: ProcessesSource(host, directories=settings.ring_dirs)),
    ("fabric", lambda host, settings: FabricSource(host, settings.fabric_targets)),
    ("probes", make_probes),
    ("clocks", make_clocks),
)


def make_sources(host: str, settings: CollectorSettings) -> Sequence[Source]:
    """Return the sources that the settings name, or all."""
    unknown = set(settings.sources) - {name for name, _ in SOURCES}
    if unknown:
        known = ", ".join(name for name, _ in SOURCES)
        raise BadInput(f"there is no source {', '.join(sorted(unknown))}; there are {known}")
    return [make(host, settings) for name, make in SOURCES if name in settings.sources or not settings.sources]
