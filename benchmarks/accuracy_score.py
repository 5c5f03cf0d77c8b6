"""How right an analysis of a story is: what was named against what broke. Pure, and the same for our peers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.accuracy_plan import Group, group_of
from lockstep.incident import Incident
from lockstep.sim.story import Expectation, Story
from lockstep.sim.timeline import Turn

# A verdict on a part that has been healed is late, not wrong, for as long as three windows may still show the fault.
_OVER_AFTER_S = 15.0
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Named:
    """One verdict, with moments counted from the beginning of the story."""

    component: str
    fault_class: str
    opened_s: float
    last_seen_s: float
    side: str | None = None
    confidence: float = 1.0
    grade: str = "alert"
    ambiguous_with: tuple[str, ...] = ()
    reason: str = ""
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

    story: str
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
    fault_classes: tuple[str, ...] = field(default=())
    step_s: float | None = None  # of a step before the fault, where the run knows it
    outlasting: int = 0  # verdicts that were still told long after the part was healed
    crashed: bool = False  # the analyzer, which said nothing then

    @property
    def wrong_isolations(self) -> tuple[Named, ...]:
        """Verdicts that would have drained what is well, or what is software's fault."""
        amiss = [hit.named for hit in self.hits if not hit.class_right]
        return tuple(named for named in (*self.wrong, *self.alarms, *amiss) if named.grade == "isolate")


def named_of(incident: Incident, start_ns: int) -> Named:
    """Return what an incident says, in the time of a story that began at that moment."""
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
    )


def score(story: Story, seed: int, named: Sequence[Named], step_s: float | None = None) -> Score:
    """Return how right the verdicts on a story are; each fault takes the best verdict on it, the rest is wrong.

    A verdict is on a fault when it names the part or another name that the story calls right, and was told neither
    before the fault nor long after its end.
    """
    began_s = healthy_until_s(story)
    hits, missed, left = _assign(story, named)
    again = [told for told in left if any(_is_on(told, fault, story) for fault in story.expect)]
    other = [told for told in left if told not in again]
    wrong = tuple(told for told in other if told.opened_s >= began_s)
    return Score(
        story=story.name,
        family=story.family,
        group=group_of(story),
        ranks=story.ranks,
        seed=seed,
        hits=tuple(hits),
        missed=tuple(missed),
        wrong=wrong,
        alarms=tuple(told for told in other if told.opened_s < began_s),
        repeats=len(again),
        covered=sum(any(_names(fault) & set(told.ambiguous_with) for fault in story.expect) for told in wrong),
        healthy_s=min(began_s, story.duration_s),
        fault_classes=tuple(fault.fault_class for fault in story.expect),
        step_s=step_s,
        outlasting=sum(hit.named.last_seen_s > _over_s(story.timeline) + _OVER_AFTER_S for hit in hits),
    )


def _assign(story: Story, named: Sequence[Named]) -> tuple[list[Hit], list[str], list[Named]]:
    """Return the best verdict on each fault, the parts that have none, and the verdicts that are left over."""
    hits, missed, left = [], [], list(named)
    for fault in story.expect:
        on_it = [told for told in left if _is_on(told, fault, story)]
        if not on_it:
            missed.append(fault.component)
            continue
        best = min(on_it, key=lambda told: _rank(told, fault))
        left.remove(best)
        hits.append(_hit(best, fault, story))
    return hits, missed, left


def healthy_until_s(story: Story) -> float:
    """Return for how long nothing that matters to the job is broken; for ever, where silence is right."""
    return min((_began_s(fault, story) for fault in story.expect), default=float("inf"))


def _began_s(fault: Expectation, story: Story) -> float:
    return fault.after_s if fault.after_s is not None else story.breaks_at_s or 0.0


def _is_on(named: Named, fault: Expectation, story: Story) -> bool:
    lasted = _began_s(fault, story) <= named.opened_s <= _over_s(story.timeline) + _OVER_AFTER_S
    return lasted and bool({named.component, *named.aliases} & _names(fault))


def _names(fault: Expectation) -> set[str]:
    return {fault.component, *fault.also_right}


def _over_s(timeline: Sequence[Turn]) -> float:
    """Return when the last part that was healed became well, or never when one was not."""
    heals = [turn for turn in timeline if turn.effect == "heal"]
    broken = {turn.part for turn in timeline if turn.part and turn.effect not in ("heal", "pause", "restart")}
    if not heals or not all(any(heal.part in (None, part) for heal in heals) for part in broken):
        return float("inf")
    return max(heal.at_s for heal in heals)


def _rank(named: Named, fault: Expectation) -> tuple[bool, bool, float]:
    """Order verdicts on one fault, the best first."""
    return not _is_class_right(named, fault), _is_side_right(named, fault) is False, named.opened_s


def _hit(named: Named, fault: Expectation, story: Story) -> Hit:
    delay_s = named.opened_s - _began_s(fault, story)
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
