"""How right an analysis of a scenario is: what was named against what broke. Pure, and the same for our peers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.accuracy_worlds import draw_world
from lockstep.verdict import Incident
from simulator.faults import over_s
from simulator.scenario import Expectation, Scenario, find_scenario, list_scenarios, resize_scenario

Group = Literal["single strong", "hard", "silence"]

FIRST_SEED = 1_001  # thresholds are tuned on seeds below 100, so none of those may ever be scored
SEEDS_OF_SIZE = {64: 20, 512: 5, 4_096: 1}
_SAMPLED_ABOVE = 1_000  # ranks; complete rows of more would fill the memory of a small machine
_SAMPLE = 0.1  # of operations with complete rows in such jobs, the statistics of each second stay whole
_ON_THE_TESTBED = "testbed-"  # sixteen ranks, as many as one machine can really run: not told larger
_WITHOUT_VARIANTS = ("healthy", "nic-half-speed")  # scenarios without variants

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
    """One scenario at one size with one seed."""

    scenario: str
    ranks: int
    seed: int
    world: int = -1  # its number, of a world that is drawn from the seed

    @property
    def key(self) -> str:
        return f"{self.scenario}/{self.ranks}/{self.seed}" + (f"/{self.world}" if self.world >= 0 else "")

    def scenario_at_size(self) -> Scenario:
        """Return the scenario at the size of the case."""
        if self.world >= 0:
            return draw_world(self.seed, self.world).scenario
        scenario = find_scenario(self.scenario)
        scenario = scenario if scenario.ranks == self.ranks else resize_scenario(scenario, self.ranks)
        if self.ranks < _SAMPLED_ABOVE:
            return scenario
        return scenario.model_copy(update={"telemetry": scenario.telemetry.model_copy(update={"sample": _SAMPLE})})


def plan_worlds(seed: int, numbers: Iterable[int]) -> list[Case]:
    """Return some worlds of a seed as cases.

    >>> plan_worlds(7, [3])[0].key
    'world/8/7/3'
    """
    drawn = {number: draw_world(seed, number).scenario for number in numbers}
    return [Case(scenario.name, scenario.ranks, seed, number) for number, scenario in drawn.items()]


def group_of(scenario: Scenario) -> Group:
    """Return what a scenario is counted under: silence is right, a single strong fault, or a hard case."""
    if not scenario.expect:
        return "silence"
    return "hard" if scenario.family in HARD or "-mild" in scenario.name else "single strong"


def family_names() -> list[str]:
    """Return all families, by name."""
    return sorted({scenario.family for scenario in list_scenarios()})


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
    variants = [scenario for scenario in list_scenarios() if scenario.family == family]
    small = ranks == min(SEEDS_OF_SIZE)
    if family.startswith(_ON_THE_TESTBED) and not small:
        return []
    if full or family in _WITHOUT_VARIANTS:
        return [_case(scenario, ranks, small, seed) for scenario in variants for seed in seeds]
    if not small:  # a handful of runs would not get round all variants, and mild ones are judged at 64
        variants = [scenario for scenario in variants if "-mild" not in scenario.name]
    # Families begin with different variants: of a few seeds, no kind of variant is left out.
    first = family_names().index(family)
    return [_case(variants[number % len(variants)], ranks, small, seed) for number, seed in enumerate(seeds, first)]


def _case(scenario: Scenario, ranks: int, small: bool, seed: int) -> Case:
    return Case(scenario.name, scenario.ranks if small else ranks, seed)


# A verdict on a part that has been healed is late, not wrong, for as long as three windows may still show the fault.
_OVER_AFTER_S = 15.0
_NS_PER_S = 1e9
_LEAST_COST = 0.01  # of the time: a cost below that is what steps differ by themselves


@dataclass(frozen=True, slots=True)
class Named:
    """One verdict, with moments counted from the beginning of the scenario."""

    component: str
    fault_class: str
    opened_s: float
    last_seen_s: float
    side: str | None = None
    confidence: float = 1.0
    grade: str = "alert"
    ambiguous_with: tuple[str, ...] = ()
    reason: str = ""
    lost_s: float | None = None  # that the fault has cost the whole job; None: unknown
    aliases: tuple[str, ...] = ()  # other names of the same thing: a peer that names a rank names its GPU and host


@dataclass(frozen=True, slots=True)
class Hit:
    """A verdict on a part that did break."""

    named: Named
    class_right: bool
    side_right: bool | None  # None: the fault has no side, or the verdict names a part that has it from elsewhere
    delay_s: float
    in_time: bool


@dataclass(frozen=True)
class Score:
    """One run: which faults were found, which verdicts are wrong, and how long nothing was broken."""

    scenario: str
    family: str
    group: Group
    ranks: int
    seed: int
    hits: tuple[Hit, ...] = ()
    missed: tuple[str, ...] = ()
    wrong: tuple[Named, ...] = ()  # in the time after the fault
    alarms: tuple[Named, ...] = ()  # while nothing was broken
    repeats: int = 0  # verdicts on a part that was found already
    covered: int = 0  # wrong verdicts that say the part at fault might as well be the one
    healthy_s: float = 0.0
    ailing_s: float = 0.0  # from the first fault to the end
    fault_classes: tuple[str, ...] = field(default=())
    step_s: float | None = None  # of a step before the fault, where the run knows it
    lost_s: float | None = None  # that the fault cost the job in truth; None: nobody can tell
    outlasting: int = 0  # verdicts that were still told long after the part was healed
    crashed: bool = False  # the analyzer, which said nothing then
    world: int = -1  # its number, where it was drawn
    unseen: bool = False  # something is broken that nobody could find

    @property
    def cost_off(self) -> float | None:
        """By which share of the truth what the verdicts say it cost is off, endless where they do not know it.

        None where there is nothing to compare: no verdict, or a fault that cost less than a hundredth of its time.
        Faults that overlap carry the whole loss each, so the largest counts.
        """
        if not self.hits or self.lost_s is None or self.lost_s < _LEAST_COST * self.ailing_s:
            return None
        known = [hit.named.lost_s for hit in self.hits if hit.named.lost_s is not None]
        return abs(max(known) / self.lost_s - 1) if known else float("inf")

    @property
    def wrong_isolations(self) -> tuple[Named, ...]:
        """Verdicts that would have drained what is well, or what is software's fault."""
        amiss = [hit.named for hit in self.hits if not hit.class_right]
        return tuple(named for named in (*self.wrong, *self.alarms, *amiss) if named.grade == "isolate")


def named_of(incident: Incident, start_ns: int) -> Named:
    """Return what an incident says, in the time of a scenario that began at that moment."""
    verdict = incident.verdict
    return Named(
        component=verdict.component,
        fault_class=verdict.fault_class,
        opened_s=(incident.opened_ns - start_ns) / _NS_PER_S,
        last_seen_s=(verdict.last_seen_ns - start_ns) / _NS_PER_S,
        side=verdict.side,
        confidence=verdict.confidence,
        grade=verdict.grade,
        ambiguous_with=verdict.ambiguous_with,
        reason=verdict.reason,
        lost_s=None if (lost := verdict.impact.gpu_hours) is None else lost * 3_600 / verdict.gpus,
    )


def score(
    scenario: Scenario,
    seed: int,
    named: Sequence[Named],
    step_s: float | None = None,
    lost_s: float | None = None,
    allowed: Sequence[Expectation] = (),
) -> Score:
    """Return how right the verdicts on a scenario are; each fault takes the best verdict on it, the rest is wrong.

    A verdict is on a fault when it names the part or another name that the scenario calls right, and was told neither
    before the fault nor long after its end. One on what is `allowed` counts neither way.
    """
    began_s = healthy_until_s(scenario)
    hits, missed, left = _assign(scenario, named)
    again = [one for one in left if any(_is_on(one, fault, scenario) for fault in scenario.expect)]
    fair = set().union(*map(_names, allowed))
    other = [one for one in left if one not in again and one.component not in fair]
    wrong = tuple(one for one in other if one.opened_s >= began_s)
    return Score(
        scenario=scenario.name,
        family=scenario.family,
        group=group_of(scenario),
        ranks=scenario.ranks,
        seed=seed,
        hits=tuple(hits),
        missed=tuple(missed),
        wrong=wrong,
        alarms=tuple(one for one in other if one.opened_s < began_s),
        repeats=len(again),
        covered=sum(any(_names(fault) & set(one.ambiguous_with) for fault in scenario.expect) for one in wrong),
        healthy_s=min(began_s, scenario.duration_s),
        ailing_s=max(scenario.duration_s - began_s, 0.0),
        fault_classes=tuple(fault.fault_class for fault in scenario.expect),
        step_s=step_s,
        lost_s=lost_s,
        outlasting=sum(hit.named.last_seen_s > over_s(scenario.timeline) + _OVER_AFTER_S for hit in hits),
    )


def _assign(scenario: Scenario, named: Sequence[Named]) -> tuple[list[Hit], list[str], list[Named]]:
    """Return the best verdict on each fault, the parts that have none, and the verdicts that are left over."""
    hits, missed, left = [], [], list(named)
    for fault in scenario.expect:
        on_it = [one for one in left if _is_on(one, fault, scenario)]
        if not on_it:
            missed.append(fault.component)
            continue
        best = min(on_it, key=lambda one: _rank(one, fault))
        left.remove(best)
        hits.append(_hit(best, fault, scenario))
    return hits, missed, left


def healthy_until_s(scenario: Scenario) -> float:
    """Return for how long nothing that matters to the job is broken; for ever, where silence is right."""
    return min((_began_s(fault, scenario) for fault in scenario.expect), default=float("inf"))


def _began_s(fault: Expectation, scenario: Scenario) -> float:
    return fault.after_s if fault.after_s is not None else scenario.breaks_at_s or 0.0


def _is_on(named: Named, fault: Expectation, scenario: Scenario) -> bool:
    lasted = _began_s(fault, scenario) <= named.opened_s <= over_s(scenario.timeline) + _OVER_AFTER_S
    return lasted and bool({named.component, *named.aliases} & _names(fault))


def _names(fault: Expectation) -> set[str]:
    return {fault.component, *fault.also_right}


def _rank(named: Named, fault: Expectation) -> tuple[bool, bool, float]:
    """Order verdicts on one fault, the best first."""
    return not _is_class_right(named, fault), _is_side_right(named, fault) is False, named.opened_s


def _hit(named: Named, fault: Expectation, scenario: Scenario) -> Hit:
    delay_s = named.opened_s - _began_s(fault, scenario)
    return Hit(
        named, _is_class_right(named, fault), _is_side_right(named, fault), delay_s, in_time=delay_s <= fault.within_s
    )


def _is_class_right(named: Named, fault: Expectation) -> bool:
    return named.fault_class in (fault.fault_class, *fault.also_class)


def _is_side_right(named: Named, fault: Expectation) -> bool | None:
    """Return whether the direction is right; a link that begins at the other end counts directions from there."""
    end = fault.component.partition(":")[2]
    same_view = named.component == fault.component or named.component.startswith(f"link:{end}--")
    return named.side == fault.side if fault.side and same_view else None
