"""What trials of planned paths gave, and the few figures that are said of them."""

from dataclasses import dataclass
from statistics import median

from tests.testbed.paths.traffic import Rates

RECOVERED = (
    0.9  # share of the ideal from which on a round counts as good: the floor of 95 %, and noise of single ones
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial with the ports that the kernel gives, and one with planned ports, right after each other."""

    random: Rates
    planned: Rates
    enforced: float  # share of the planned flows of which the shim said so


@dataclass(frozen=True, slots=True)
class PairedTrials:
    """All pairs on one fabric; `single_mbps` is what one flow carries that has the fabric to itself."""

    hosts: int
    flows: int
    single_mbps: float
    pairs: tuple[Pair, ...]

    @property
    def ideal_mbps(self) -> float:
        """All flows at once as fast as one alone."""
        return self.flows * self.single_mbps

    @property
    def random_share(self) -> float:
        """Median aggregate of random ports, as a share of the ideal."""
        return median(pair.random.aggregate_mbps for pair in self.pairs) / self.ideal_mbps

    @property
    def planned_share(self) -> float:
        return median(pair.planned.aggregate_mbps for pair in self.pairs) / self.ideal_mbps

    @property
    def worst_ratio(self) -> float:
        """How much faster the slowest flow is: medians of planned over random."""
        return self._worst_planned / median(pair.random.worst_mbps for pair in self.pairs)

    @property
    def worst_share(self) -> float:
        """The slowest planned flow, as a share of one alone."""
        return self._worst_planned / self.single_mbps

    @property
    def enforced(self) -> float:
        return sum(pair.enforced for pair in self.pairs) / len(self.pairs)

    @property
    def _worst_planned(self) -> float:
        return median(pair.planned.worst_mbps for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Round:
    """All flows have sent the same number of bytes, as in a collective operation: it ends with the slowest."""

    end_s: float  # since the cut
    took_s: float
    share: float  # of the ideal after the cut


@dataclass(frozen=True, slots=True)
class CutTrial:
    """A link is cut while all flows send, and something is done about it, or nothing."""

    link: str
    is_dynamic: bool
    before: float  # share of the ideal before the cut
    rounds: tuple[Round, ...]  # after it; the first was under way when the link was cut
    moved: int  # flows that got another port
    decided_s: float | None  # after the cut, when flows were last told new ports; None: never

    @property
    def after(self) -> float:
        """Share of the ideal after the cut in the steady state: the median of the later half of the rounds."""
        return median(each.share for each in self.rounds[len(self.rounds) // 2 :])

    @property
    def recovered_s(self) -> float | None:
        """Seconds from the cut until the last flow was told to move and a round begins that has its share again.

        None: not while we looked. A round may have its share although flows moved during it.
        """
        good = [each.end_s - each.took_s for each in self.rounds if each.share >= RECOVERED]
        return max(good[0], self.decided_s or 0.0) if good else None
