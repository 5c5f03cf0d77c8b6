"""Every source there is, in one place."""

from collections.abc import Callable, Sequence

from collector.source import Source
from collector.sources.gpu import GpuSource
from collector.sources.kernel_log import KernelLogSource
from collector.sources.links import LinksSource
from collector.sources.processes import ProcessesSource
from collector.sources.rdma import RdmaSource
from lockstep.config import CollectorSettings
from lockstep.errors import BadInput

# What makes a source: from the name of the host and the settings of its agent.
Make = Callable[[str, CollectorSettings], Source]

SOURCES: tuple[tuple[str, Make], ...] = (
    ("links", lambda host, _: LinksSource(host)),
    ("rdma", lambda host, _: RdmaSource(host)),
    ("gpu", lambda host, _: GpuSource(host)),
    ("kernel_log", lambda host, _: KernelLogSource(host)),
    ("processes", lambda host, _: ProcessesSource(host)),
)


def make_sources(host: str, settings: CollectorSettings) -> Sequence[Source]:
    """Return the sources that the settings name, or all."""
    unknown = set(settings.sources) - {name for name, _ in SOURCES}
    if unknown:
        known = ", ".join(name for name, _ in SOURCES)
        raise BadInput(f"there is no source {', '.join(sorted(unknown))}; there are {known}")
    return [make(host, settings) for name, make in SOURCES if name in settings.sources or not settings.sources]
