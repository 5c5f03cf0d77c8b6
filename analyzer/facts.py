"""What a window looks like after reduction: a delay per pair of NICs, the pace of the job, and who was seen."""

from dataclasses import dataclass

import pyarrow as pa

from analyzer.windows import Window


@dataclass(frozen=True)
class WindowFacts:
    """Everything the stages need to know about one job in one window."""

    window: Window
    job: str
    attempt: int
    ranks: int
    hosts: frozenset[str]  # where the job runs
    silent: frozenset[str]  # of those, who said nothing
    pairs: pa.Table  # src_host, src_nic?, dst_host, dst_nic?, transport?, size_class, transfers, bytes, wire_ns
    operations: int  # finished in the window, counted once per rank
    nodes: int  # hosts that its communicators count; some of them may never have said a word

    @property
    def coverage(self) -> float:
        return len(self.hosts - self.silent) / max(len(self.hosts), self.nodes, 1)

    @property
    def pace(self) -> float | None:
        """Operations a second and rank: for a periodic job, proportional to one over its step time."""
        return self.operations / self.ranks / self.window.seconds if self.operations and self.ranks else None
