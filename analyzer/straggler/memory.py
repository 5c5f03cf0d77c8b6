"""What is remembered of late ranks from evaluation to evaluation, by the number that each process has now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.straggler.gpu_waits import PastWaits
from analyzer.straggler.own_past import OwnTimes
from analyzer.windows.jobs import Roster


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One operation before which a GPU took far longer than all others."""

    process: int
    at_ns: int
    lost_ns: float


@dataclass(frozen=True, slots=True)
class StragglerSince:
    """When a process was found late first, and when that had begun."""

    found_ns: int  # end of the evaluation
    begun_ns: int


@dataclass(frozen=True, slots=True)
class StragglerMemory:
    """What is kept from evaluation to evaluation."""

    slow_steps: tuple[SlowStep, ...] = ()  # that came alone
    begun_ns: int | None = None  # since when we look
    paces: tuple[tuple[int, float], ...] = ()  # end of each evaluation, and operations of a rank in a second
    slower_ns: int = 0  # end of the last evaluation in which ranks did fewer than that
    waits: PastWaits = field(default_factory=PastWaits)  # of receives for their own GPU
    own: tuple[OwnTimes, ...] = ()  # of the evaluations before in which nobody's had grown
    straggling_since: Mapping[int, StragglerSince] = field(
        default_factory=dict
    )  # by process, of those late in the last evaluation
    roster: Roster = field(default_factory=Roster.empty)  # whose numbers these are

    def renumbered(self, roster: Roster) -> "StragglerMemory":
        """Return the memory by the numbers of another roster: ranks that become known late shift those of others.

        What has no number any more is forgotten, and so are times of fewer processes, which tell no median of all.
        """
        if _has_same_numbers(roster, self.roster):
            return replace(self, roster=roster)
        now, before = _number_of_each(roster), _number_of_each(self.roster)
        number_of = {before[name]: now[name] for name in before if name in now}
        since = {number_of[each]: since for each, since in self.straggling_since.items() if each in number_of}
        steps = tuple(
            replace(step, process=number_of[step.process]) for step in self.slow_steps if step.process in number_of
        )
        held = frozenset(number_of[each] for each in self.waits.held if each in number_of)
        waits = replace(self.waits, held=held)
        return replace(self, slow_steps=steps, straggling_since=since, waits=waits, own=(), roster=roster)


def _has_same_numbers(one: Roster, other: Roster) -> bool:
    columns = ("world_rank_of", "host_of", "gpu_of")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def _number_of_each(roster: Roster) -> dict[tuple[int, str, int], int]:
    """Return the number of each process by its rank in the job, or by its GPU where that is not known."""
    is_ranked = roster.world_rank_of >= 0
    hosts, gpus = np.where(is_ranked, "", roster.host_of), np.where(is_ranked, -1, roster.gpu_of)
    names = list(zip(roster.world_rank_of.tolist(), hosts.tolist(), gpus.tolist(), strict=True))
    times = Counter(names)  # of several that tell neither, nobody can say which is which
    return {name: number for number, name in enumerate(names) if times[name] == 1}
