"""Which runs the accuracy of the analyzer is measured on, and which of them are hard.

Thresholds are tuned on small seeds; the table is made from seeds that nobody looks at while tuning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.sim.library import find_story, list_stories
from lockstep.sim.story import Story, resize_story

Group = Literal["single strong", "hard", "silence"]

FIRST_SEED = 1_001  # thresholds are tuned on seeds below 100, so none of those may ever be scored
SEEDS_OF_SIZE = {64: 20, 512: 5, 4_096: 1}
_SAMPLED_ABOVE = 1_000  # ranks; complete rows of more would fill the memory of a small machine
_SAMPLE = 0.1  # of operations with complete rows in such jobs, the statistics of each second stay whole
_ON_THE_TESTBED = "testbed-"  # sixteen ranks, as many as one machine can really run: not told larger
_TOLD_ALONE = ("healthy", "nic-half-speed")  # stories without variants

# Everything mild is hard as well: an excess that a noisy cluster may show by itself.
HARD = {
    "two-faults": "two faults at once, each of which hides a part of the other",
    "three-faults": "three faults of two kinds at once",
    "compute-and-wire": "a slow GPU and a slow wire at once: the mixed case that C4D leaves out",
    "hidden-straggler": "the second fault hides behind the first one, which is worse",
    "gpu-rare": "in one step of seven only, so that averages hide it",
    "pause-spread": "senders that are not at fault are held up by pause frames",
    "clock-skew": "clocks are 10 ms off and drift",
    "clock-skew-gpu": "clocks are 10 ms off and drift",
    "late-batches": "rows arrive seconds late and in another order",
    "culprit-unseen": "the host at fault tells nothing of its operations",
    "testbed-culprit-unseen": "the host at fault tells nothing",
    "silent-hosts": "five of sixteen hosts tell nothing",
    "nic-unknown": "nobody knows which transfer used which NIC",
}


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One story at one size with one seed."""

    story: str
    ranks: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.story}/{self.ranks}/{self.seed}"

    def tell(self) -> Story:
        """Return the story at the size of the case."""
        told = find_story(self.story)
        told = told if told.ranks == self.ranks else resize_story(told, self.ranks)
        if self.ranks < _SAMPLED_ABOVE:
            return told
        return told.model_copy(update={"telling": told.telling.model_copy(update={"sample": _SAMPLE})})


def group_of(story: Story) -> Group:
    """Return what a story is counted under: silence is right, a single strong fault, or a hard case."""
    if not story.expect:
        return "silence"
    return "hard" if story.family in HARD or "-mild" in story.name else "single strong"


def family_names() -> list[str]:
    """Return all families, by name."""
    return sorted({story.family for story in list_stories()})


def plan_cases(full: bool, families: Iterable[str] = (), seeds: Sequence[int] = ()) -> list[Case]:
    """Return the cases of the table, the small ones first; of each family, or of those that are named.

    A family's variants take turns over its seeds; in full, each variant has all of them. Where seeds are given, they
    replace those of the smallest size, and there are no others. Seed by seed, so that a run that was interrupted has
    seen every family.
    """
    wanted = sorted(families) or family_names()
    sizes = {min(SEEDS_OF_SIZE): len(seeds)} if seeds else SEEDS_OF_SIZE
    planned = []
    for size, count in sizes.items():
        those = seeds or range(FIRST_SEED, FIRST_SEED + count)
        cases = [case for family in wanted for case in _cases(family, size, those, full)]
        planned += sorted(cases, key=lambda case: case.seed)
    return planned


def _cases(family: str, ranks: int, seeds: Sequence[int], full: bool) -> list[Case]:
    variants = [story for story in list_stories() if story.family == family]
    small = ranks == min(SEEDS_OF_SIZE)
    if family.startswith(_ON_THE_TESTBED) and not small:
        return []
    if full or family in _TOLD_ALONE:
        return [_case(story, ranks, small, seed) for story in variants for seed in seeds]
    if not small:  # a handful of runs would not get round all variants, and mild ones are judged at 64
        variants = [story for story in variants if "-mild" not in story.name]
    # Families begin with different variants: of a few seeds, no kind of variant is left out.
    first = family_names().index(family)
    return [_case(variants[turn % len(variants)], ranks, small, seed) for turn, seed in enumerate(seeds, first)]


def _case(story: Story, ranks: int, small: bool, seed: int) -> Case:
    return Case(story.name, story.ranks if small else ranks, seed)
