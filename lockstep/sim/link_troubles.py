"""What each link of a simulated fabric suffers: where it is slow, loses packets or is down, and who sees it."""

from dataclasses import dataclass

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.sim.conditions import Condition, Conditions
from lockstep.sim.network import Floats, Ints, Network
from lockstep.sim.placement import Flags, place
from lockstep.sim.spells import Spell, is_within, joined, spells_of
from lockstep.sim.story import Story
from lockstep.sim.timeline import Turn, turns_now
from lockstep.topology import split_end

_ON_WIRES = ("nic", "link", "switch")


@dataclass(frozen=True)
class Trouble:
    """The links at a moment, by directed link; losses are shares of the packets, by who counts them."""

    condition: Condition
    unsent: Floats  # a NIC that fails to send
    broken: Floats  # whoever receives them
    swallowed: Floats  # the switch that sends them on, or does not
    is_slow_taker: Flags  # the NIC or switch at its end takes less than the link brings
    ends_at_switch: Flags

    @property
    def capacity(self) -> Floats:
        return self.condition.capacity

    @property
    def lost(self) -> Floats:
        return 1 - (1 - self.unsent) * (1 - self.broken) * (1 - self.swallowed)


class LinkTroubles:
    """Answers about the links of one story, by the same conditions that its operations run under."""

    def __init__(self, story: Story, network: Network) -> None:
        self.links = network.links
        self._story, self._network = story, network
        self._placement = place(story)  # links are the same for every attempt
        self._conditions = Conditions(story.timeline, network, self._placement, story.cluster.transport)
        self._known: dict[int, Trouble] = {}
        ends = [(split_end(link.a), split_end(link.b)) for link in network.links]
        self._sender = np.array([node for (a, _), (b, _) in ends for node in (a, b)])
        # A host's end names its NIC; what is no link ends nowhere.
        self._ends_at_switch = np.array([port is None for a, b in ends for _, port in (b, a)] + [False])
        self.spells = self._find_spells()

    def at(self, now_ns: float, size: int, lucky: frozenset[Turn] = frozenset()) -> Trouble:
        """Return what operations of a size meet; the same state is the same object."""
        condition = self._conditions.at(now_ns, size, lucky)
        if id(condition) not in self._known:
            turns = [turn for turn in turns_now(self._story.timeline, now_ns / NS_PER_S) if turn not in lucky]
            there = [turn for turn in turns if turn.above_bytes <= size]
            losing = [turn for turn in there if turn.effect in ("losing", "rate") and turn.kind in _ON_WIRES]
            self._known[id(condition)] = self._judge(condition, losing, now_ns / NS_PER_S)
        return self._known[id(condition)]

    def links_of(self, turn: Turn) -> Ints:
        """Return the directed links that a turn concerns."""
        return np.array(self._conditions.links_of(turn), np.int64)

    def down_at(self, now_s: float) -> Flags:
        """Return which links have no carrier, by link and not by direction: both ends lose it."""
        down = np.zeros(len(self._network.links), bool)
        for number, spells in self.spells.items():
            down[number] = is_within(spells, now_s)
        return down

    def dead_switches(self, now_s: float) -> set[str]:
        """Return the switches that are down as a whole and so tell nothing."""
        turns = turns_now(self._story.timeline, now_s)
        return {turn.name for turn in turns if turn.effect == "down" and turn.kind == "switch"}

    def _find_spells(self) -> dict[int, list[Spell]]:
        """Return when links are down, by link: for themselves, or because the host at their end is off."""
        found: dict[int, list[Spell]] = {}
        for turn in self._story.timeline:
            if turn.effect in ("down", "over", "gone"):
                spells = spells_of(turn, self._story.timeline, self._story.duration_s)
                links = self.links_of(turn) // 2 if turn.effect != "gone" else self._cables_of(turn.name)
                for number in set(links.tolist()):
                    found[number] = joined(found.get(number, []) + spells)
        return found

    def _cables_of(self, host: str) -> Ints:
        return np.flatnonzero([split_end(link.a)[0] == host for link in self._network.links])

    def _judge(self, condition: Condition, turns: list[Turn], now_s: float) -> Trouble:
        links = len(condition.capacity)
        unsent, broken, swallowed = np.zeros(links), np.zeros(links), np.zeros(links)
        trouble = Trouble(condition, unsent, broken, swallowed, np.zeros(links, bool), self._ends_at_switch)
        for turn in turns:
            mine = self.links_of(turn)
            is_sent = self._sender[mine] == turn.name.partition("/")[0]  # by the part itself, unless it is a link
            if turn.effect == "losing":
                loss = (turn.amount or 0.0) * turn.level(now_s)
                seen_by_sender = {"nic": unsent, "switch": swallowed}.get(turn.kind, broken)
                seen_by_sender[mine[is_sent]] = broken[mine[~is_sent]] = loss
            elif turn.effect == "rate" and turn.kind != "link":
                trouble.is_slow_taker[mine[~is_sent]] = True
        return trouble
