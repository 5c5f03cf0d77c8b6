"""Signs: what is known of parts beside the wires, as bounded weights that tilt a choice and never make it alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lockstep.verdict import FaultClass, Side

MOST = 3.0  # all signs together make a part at most twenty times likelier: counters are wrong in ways we do not know


@dataclass(frozen=True, slots=True)
class Sign:
    """One observation about one part."""

    component: str
    weight: float  # logarithm of how much likelier it is seen when the part is at fault than when it is not
    evidence: dict[str, Any]  # Any: each kind of evidence has its own figures
    side: Side | None = None  # the direction that it speaks of; None: both
    is_down: bool = False  # the part carries nothing at all


@dataclass(frozen=True, slots=True)
class HardFact:
    """Something that needs no likelihood: the part said itself that it is broken."""

    ts_ns: int
    fault_class: FaultClass
    component: str
    reason: str
    evidence: dict[str, Any]  # Any: each kind of evidence has its own figures


@dataclass(frozen=True)
class Signs:
    """All signs of one look, by component."""

    by_component: dict[str, tuple[Sign, ...]] = field(default_factory=dict)
    hard: tuple[HardFact, ...] = ()  # the oldest first

    def llr(self, component: str, side: Side | None = None) -> float:
        """Return the weight of all signs of a part, for one direction or for any; 0 where there are none."""
        total = sum(sign.weight for sign in self._of(component, side))
        return min(max(total, -MOST), MOST)

    def evidence(self, component: str, side: Side | None = None) -> tuple[dict[str, Any], ...]:
        """Return what was seen of a part, the weightiest first."""
        signs = sorted(self._of(component, side), key=lambda sign: -abs(sign.weight))
        return tuple({**sign.evidence, "weight": round(sign.weight, 2)} for sign in signs)

    @cached_property
    def down(self) -> frozenset[str]:
        """Return the parts that carry nothing at all; what they did before, others have to do."""
        signs = (sign for each in self.by_component.values() for sign in each)
        return frozenset(sign.component for sign in signs if sign.is_down)

    def _of(self, component: str, side: Side | None) -> Iterator[Sign]:
        signs = self.by_component.get(component, ())
        return (sign for sign in signs if None in (side, sign.side) or sign.side == side)


NO_SIGNS = Signs()


def gather_signs(signs: Iterable[Sign], hard: Iterable[HardFact] = ()) -> Signs:
    """Return the signs by component, and the hard facts in their order."""
    found: dict[str, list[Sign]] = {}
    for sign in signs:
        found.setdefault(sign.component, []).append(sign)
    return Signs(
        {component: tuple(each) for component, each in found.items()},
        tuple(sorted(hard, key=lambda fact: fact.ts_ns)),
    )
