"""Every source there is, in one place."""

from collections.abc import Callable

from collector.source import Source
from collector.sources.gpu import GpuSource
from collector.sources.kernel_log import KernelLogSource
from collector.sources.links import LinksSource
from collector.sources.processes import ProcessesSource
from collector.sources.rdma import RdmaSource

# Name of the source, and what makes it for a host.
SOURCES: tuple[tuple[str, Callable[[str], Source]], ...] = (
    ("links", LinksSource),
    ("rdma", RdmaSource),
    ("gpu", GpuSource),
    ("kernel_log", KernelLogSource),
    ("processes", ProcessesSource),
)
