"""From an explanation to faults with a name, a likelihood, what cannot be told from them, and what was cleared.

The likelihood of a part is its share among everything that could stand in its place: other parts beside the same
remaining faults, other explanations of the whole, and chance. A slow connection that may be due to either NIC or to
what lies between them is named as the wire from NIC to NIC, and as likely as all of these together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.evidence.observations import Evidence
from analyzer.localize.parts import Kind
from analyzer.localize.search import Cables, Explanation, Pick, Search
from lockstep.topology import host_name, split_end
from lockstep.verdict import RuledOut, Side

_AMBIGUITY = math.log(10)  # less than ten times as likely is not told apart
_EQUAL = 1.5  # in the logarithm: more, and one NIC is twice as likely as the wire and the other NIC together
_MOST_RULED_OUT = 8  # a person reads them


@dataclass(frozen=True)
class Fault:
    """A part at fault, what cannot be told from it, and what was cleared."""

    kind: Kind
    component: str
    side: Side | None
    likelihood: float
    members: np.ndarray  # the slow pairs it explains, as a mask
    ambiguous_with: tuple[str, ...]
    ruled_out: tuple[RuledOut, ...]
    moved_to: str | None = None  # the part that carries its traffic since it is dead


def name_faults(search: Search, explanations: Sequence[Explanation], cables: Cables) -> list[Fault]:
    """Return the faults of the best explanation, the one that explains most first."""
    best = explanations[0]
    namings = _without_echoes(search, [_Naming(search, explanations, pick, cables) for pick in best.picks])
    guilty = {naming.part.component for naming in namings}
    faults: dict[str, Fault] = {}
    for fault in (naming.fault(guilty) for naming in namings if naming.members.any()):
        faults[fault.component] = _joined(faults[fault.component], fault) if fault.component in faults else fault
    return sorted(faults.values(), key=lambda fault: -int(fault.members.sum()))


def _without_echoes(search: Search, namings: "list[_Naming]") -> "list[_Naming]":
    """Return the namings without parts all of whose slow pairs run through a switch that is at fault itself.

    What stays inside of it may be slowed more than what only comes or goes.
    """
    suspects = search.likelihood.suspects
    switches = [naming for naming in namings if naming.part.kind == "switch"]
    through = [set(suspects.members(suspects.parts.index(naming.part)).tolist()) for naming in switches]
    return [
        naming
        for naming in namings
        if naming in switches or not any(set(np.flatnonzero(naming.members).tolist()) <= pairs for pairs in through)
    ]


def _joined(one: Fault, other: Fault) -> Fault:
    """Return two faults of one component as one, such as those of two GPUs that share a NIC nobody knows."""
    return replace(
        one,
        side=one.side if one.side == other.side else None,
        likelihood=max(one.likelihood, other.likelihood),
        members=one.members | other.members,
        ambiguous_with=tuple(dict.fromkeys((*one.ambiguous_with, *other.ambiguous_with))),
        ruled_out=tuple({part.component: part for part in (*one.ruled_out, *other.ruled_out)}.values()),
    )


class _Naming:
    """What could stand in the place of one part of an explanation."""

    def __init__(self, search: Search, explanations: Sequence[Explanation], pick: Pick, cables: Cables) -> None:
        self._search, self._explanations, self._cables = search, explanations, cables
        self._suspects = search.likelihood.suspects
        rest = [each for each in explanations[0].picks if each.number != pick.number]
        values, _ = search.values(rest)
        self.members = self._explained(rest, pick)
        self._involved = self._suspects.touched(self.members)
        possible = (self._involved > 0) & np.isfinite(values)
        self._values: dict[int, float] = {
            number: float(values[number]) for number in np.flatnonzero(possible).tolist()
        }
        self._values.setdefault(pick.number, float(values[pick.number]))
        self.part = self._suspects.parts[self._choose(pick.number)]
        self._share_of_fault = search.share_of_fault(rest, pick)

    def fault(self, guilty: set[str]) -> Fault:
        named = self._named()
        rivals = [name for name in named if name != self.part.component]
        component, side, rivals = self._cable_or_nic(rivals)
        return Fault(
            kind=self.part.kind,
            component=component,
            side=side,
            likelihood=self._likelihood(),
            members=self.members,
            ambiguous_with=tuple(rivals),
            ruled_out=tuple(self._ruled_out({component, *rivals, *guilty, *named})),
        )

    def _explained(self, rest: Sequence[Pick], pick: Pick) -> np.ndarray:
        """Return the slow pairs that the part explains and none of the others does."""
        likelihood = self._search.likelihood
        without = likelihood.none()
        for each in rest:
            without = likelihood.explain(without, each)
        with_it = likelihood.explain(without, pick)
        explained: np.ndarray = likelihood.slow & (with_it > without) & likelihood.unexplained(without)
        return explained

    def _choose(self, picked: int) -> int:
        """Return the part to name: the likeliest, or what holds all of those that no observation tells apart.

        That is the wire for its NICs, and the host for its NVLinks.
        """
        parts = self._suspects.parts
        best = max(self._values, key=lambda number: (round(self._values[number], 6), number == picked))
        equal = [number for number, value in self._values.items() if value >= self._values[best] - _EQUAL]
        if parts[best].kind in ("pair", "nic"):
            return next((number for number in equal if parts[number].joins_nics), best)
        if parts[best].kind == "host":  # of either host, a NIC that nobody knows
            between = [number for number in np.flatnonzero(self._involved).tolist() if parts[number].kind == "pair"]
            hosts = {parts[number].component for number in equal}
            if len(between) == 1 and hosts >= {host_name(end) for end in parts[between[0]].ends}:
                return between[0]
        if parts[best].kind == "nvlink" and self._has_siblings(best):
            return next((number for number in self._values if parts[number].kind == "host"), best)
        return best

    def _has_siblings(self, best: int) -> bool:
        """Return whether other NVLinks cannot be told from one."""
        least, kind = self._values[best] - _AMBIGUITY, self._suspects.parts[best].kind
        alike = [number for number, value in self._values.items() if value > least]
        return sum(self._suspects.parts[number].kind == kind for number in alike) > 1

    def _named(self) -> list[str]:
        """Return the components that cannot be told apart, the likeliest first."""
        parts = self._suspects.parts
        best = max(self._values.values())
        alike = [number for number, value in self._values.items() if value > best - _AMBIGUITY]
        alike.sort(key=lambda number: -self._values[number])
        return list(dict.fromkeys([*(parts[number].component for number in alike), *self._elsewhere()]))

    def _elsewhere(self) -> Iterator[str]:
        """Yield the parts of other explanations, as good as ours, that account for some of the same wires."""
        best = self._explanations[0]
        ours = {self._suspects.parts[pick.number].component for pick in best.picks}
        for other in self._explanations[1:]:
            if other.score > best.score - _AMBIGUITY and not self._is_in(other):
                for pick in other.picks:
                    name = self._suspects.parts[pick.number].component
                    if self._involved[pick.number] and name not in ours:
                        yield name

    def _is_in(self, explanation: Explanation) -> bool:
        covered = self._covered()
        return any(self._suspects.parts[pick.number].component in covered for pick in explanation.picks)

    def _covered(self) -> set[str]:
        """Return the components for which the name stands: its own, a pair's NICs or hosts, and a host's NVLinks."""
        is_pair = self.part.kind == "pair"
        nics = {f"nic:{end}" if split_end(end)[1] else host_name(end) for end in self.part.ends if is_pair}
        opposite = {f"link:{'--'.join(self.part.ends[::-1])}"} if is_pair else set()
        parts = self._suspects.parts
        nvlinks = {parts[number].component for number in self._values if parts[number].kind == "nvlink"}
        return {self.part.component, *nics, *opposite, *(nvlinks if self.part.kind == "host" else ())}

    def _likelihood(self) -> float:
        best, covered = max(self._values.values()), self._covered()
        weights = {number: math.exp(value - best) for number, value in self._values.items()}
        ours = sum(weights[number] for number in weights if self._suspects.parts[number].component in covered)
        chance = math.exp(min(-best, 0.0))
        return ours / (sum(weights.values()) + chance) * self._share_of_explanations() * self._share_of_fault

    def _share_of_explanations(self) -> float:
        best = self._explanations[0].score
        weights = [math.exp(each.score - best) for each in self._explanations]
        ours = sum(weight for weight, each in zip(weights, self._explanations, strict=True) if self._is_in(each))
        return ours / sum(weights)

    def _cable_or_nic(self, rivals: list[str]) -> tuple[str, Side | None, list[str]]:
        """Name the cable beside its NIC, or in its place where evidence speaks for it."""
        names = [self.part.component, *rivals]
        cables = [cable[0] for name in names if (cable := self._cables.cable_of(name))]
        rivals = [*rivals, *(name for name in dict.fromkeys(cables) if name not in names)]
        own = self._cables.cable_of(self.part.component, self.part.side)
        if own and self._search.prefers_cable(self.part, own):
            others = [self.part.component, *(name for name in rivals if name != own[0])]
            return own[0], own[1], others
        return self.part.component, self.part.side, rivals

    def _ruled_out(self, kept: set[str]) -> Iterator[RuledOut]:
        """Say why the other parts that the slow pairs run through are not the one: what else they carry is fine."""
        suspects, likelihood = self._suspects, self._search.likelihood
        carried, normal = suspects.count(likelihood.slow | likelihood.normal), suspects.count(likelihood.normal)
        widest: dict[str, int] = {}
        for number in np.flatnonzero(self._involved).tolist():
            name = suspects.parts[number].component
            if carried[number] > carried[widest.setdefault(name, number)]:
                widest[name] = number
        cleared = [(name, number) for name, number in widest.items() if normal[number] and name not in kept]
        for name, number in sorted(cleared, key=lambda item: -normal[item[1]])[:_MOST_RULED_OUT]:
            because = f"{normal[number]:.0f} of the {carried[number]:.0f} connections through it are normal"
            yield RuledOut(component=name, because=because)


def pass_on_to_dead_port(fault: Fault, evidence: Evidence) -> Fault:
    """Return the fault of the NIC of the same host that has no carrier, where a slow one has it as an excuse."""
    if fault.kind != "nic" or fault.component in evidence.down:
        return fault
    host, _ = split_end(fault.component.partition(":")[2])
    dead = sorted(name for name in evidence.down if name.startswith(f"nic:{host}/"))
    if len(dead) != 1:  # of several nobody knows whose traffic it is
        return fault
    named = (fault.component, *fault.ambiguous_with)
    others = tuple(name for name in named if name != dead[0])
    return replace(fault, component=dead[0], side=None, ambiguous_with=others, moved_to=fault.component)
