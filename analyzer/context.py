"""What every stage is told about one look at a job."""

from dataclasses import dataclass

from analyzer.roster import Roster
from analyzer.windows import Window
from lockstep.topology import TopologyIndex


@dataclass(frozen=True, slots=True, order=True)
class End:
    """One end of a connection; the NIC is None when nothing told which one it is."""

    host: str
    nic: str | None

    def __str__(self) -> str:
        return f"{self.host}/{self.nic}" if self.nic else self.host


@dataclass(frozen=True)
class Context:
    """One look: which job, which stretch of time, who takes part, and who said nothing."""

    job: str
    attempt: int
    window: Window  # what is judged; all hosts that are not silent have sent everything up to its end
    fresh_ns: int  # what is later than this is new since the look before
    roster: Roster
    topology: TopologyIndex | None
    silent: frozenset[str] = frozenset()  # hosts of the job that say nothing: their rows are missing, not healthy
    period_ns: int | None = None  # length of a training step, as far as it has been learnt

    @property
    def coverage(self) -> float:
        """Return the share of the job's hosts that was seen."""
        return len(self.roster.hosts - self.silent) / max(len(self.roster.hosts), self.roster.nodes, 1)
