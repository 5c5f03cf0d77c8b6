"""Every source there is, in one place."""

from collections.abc import Callable

from collector.source import Source
from collector.sources.links import LinksSource

# Name of the source, and what makes it for a host.
SOURCES: tuple[tuple[str, Callable[[str], Source]], ...] = (("links", LinksSource),)
