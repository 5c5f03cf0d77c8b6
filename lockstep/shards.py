"""Which of several analyzers follows a job: jobs are shared out by their names, a lease for each share."""

from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Shard:
    """The jobs that one process follows, of so many processes.

    >>> [shard.name for shard in Shard.all_of(3)]
    ['analyzer', 'analyzer-1', 'analyzer-2']
    >>> [shard.index for shard in Shard.all_of(3) if shard.has("llama-70b")]
    [1]
    """

    index: int = 0
    of: int = 1

    @classmethod
    def all_of(cls, count: int) -> "tuple[Shard, ...]":
        return tuple(cls(index, count) for index in range(count))

    @property
    def name(self) -> str:
        """Return the name of its lease; the first one's is that of an analyzer that follows all jobs."""
        return f"analyzer-{self.index}" if self.index else "analyzer"

    def has(self, job: str) -> bool:
        return crc32(job.encode()) % self.of == self.index


ALL_JOBS = Shard()
