"""A plan put right: flows off what is dead or too full, each onto a road with room, or one where room can be made.

A flow that finds no road with room may push another one off the one lane that is too full, which then looks for a
road itself, and so on: the shortest such chain is found by a breadth-first search and carried out from its end. On
two tiers this contains the alternating chains of edge colouring, so it seldom fails where a plan exists.

Cost: a few array operations per flow that is moved; nothing for those that stay.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from planner.paths.roads import UNPLACED, Roads, find_use

_SLACK = 1e-9  # of a rate: sums of floats are no exact numbers


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How hard to try."""

    most_tried: int = 300  # flows in one search for a chain; found chains need few, and failures cost all of them
    most_pushed: int = 4  # flows of one full lane that are asked to make room for a certain one
    most_asked: int = 64  # flows that are looked at for that: most may be too small to make enough
    most_moves: int = 1 << 62  # flows that may move at all besides those that must


@dataclass(slots=True)
class Repair:
    """A plan while it is being changed: tops, loads, and who is on which lane."""

    roads: Roads
    top: np.ndarray
    options: RepairOptions = field(default_factory=RepairOptions)
    load: np.ndarray = field(init=False)
    moved: set[int] = field(default_factory=set)
    _members: dict[int, dict[int, None]] = field(default_factory=dict)  # ordered, so that results are repeatable

    def __post_init__(self) -> None:
        self.load = self.roads.find_loads(self.top)

    def find_highest(self) -> float:
        """Return the highest use of a lane between switches."""
        use = find_use(self.roads.network, self.load)[self.roads.network.fabric]
        return float(use.max(initial=0.0))

    def place(self, flows: np.ndarray) -> None:
        """Give flows without a road the one on which the fullest lane is the emptiest, the largest flows first."""
        order = flows[np.argsort(-self.roads.flows.size[flows], kind="stable")]
        gbps = self.roads.network.gbps
        for flow in order.tolist():
            tops = self.roads.tops(flow)
            if not len(tops):
                continue
            lanes = self.roads.lanes(flow, tops)
            use = (self.load[lanes] + self.roads.flows.size[flow]) / gbps[lanes]
            # The sum decides among equals; it is less than any difference in the maximum that matters.
            best = int(np.argmin(use.max(axis=1) + 1e-6 * use.sum(axis=1)))
            self._put(flow, int(tops[best]), lanes[best])

    def lower(self, most: float) -> bool:
        """Bring the use of every lane between switches to `most`; return whether that was possible."""
        network = self.roads.network
        limit = most * network.gbps * (1 + _SLACK)
        self._index()
        over = np.flatnonzero((self.load > limit) & network.fabric)
        over = over[np.argsort(limit[over] - self.load[over], kind="stable")]
        return all(self._relieve(lane, limit) for lane in over.tolist())

    def _relieve(self, lane: int, limit: np.ndarray) -> bool:
        while self.load[lane] > limit[lane]:
            if len(self.moved) >= self.options.most_moves:
                return False
            if not self._find_chain(self._find_starts(lane), lane, limit):
                return False
        return True

    def _find_starts(self, lane: int) -> list[int]:
        """Return flows of a lane that may leave it: the newest of those that are equal in size and leaves."""
        near, far, size = self.roads.flows.near, self.roads.flows.far, self.roads.flows.size
        return list({(near[flow], far[flow], size[flow]): flow for flow in self._members[lane]}.values())

    def _find_chain(self, starts: list[int], lane: int, limit: np.ndarray) -> bool:
        """Move one of some flows off a lane, and others to make room for it; return whether that was possible."""
        pushed_by: dict[int, tuple[int, int] | None] = dict.fromkeys(starts)  # who pushes it, and onto which top
        waiting = deque((flow, lane) for flow in starts)
        tried = 0
        while waiting and tried < self.options.most_tried:
            flow, off = waiting.popleft()
            tried += 1
            tops, lanes, is_full = self._look(flow, off, limit)
            free = ~is_full.any(axis=1)
            if free.any() and self._carry_out(flow, self._emptiest(tops[free], lanes[free]), pushed_by, limit):
                return True
            for other, top, full in self._find_pushable(tops, lanes, is_full, limit, flow):
                if other not in pushed_by:
                    pushed_by[other] = flow, top
                    waiting.append((other, full))
        return False

    def _look(self, flow: int, off: int, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tops that avoid a lane, their lanes, and which of those have no room for the flow."""
        tops = self.roads.tops(flow)
        lanes = self.roads.lanes(flow, tops)
        avoids = (lanes != off).all(axis=1)
        tops, lanes = tops[avoids], lanes[avoids]
        size, own = self.roads.flows.size[flow], self._lanes_now(flow)
        is_full = (self.load[lanes] + size > limit[lanes]) & ~np.isin(lanes, own)  # where it is, it is already
        return tops, lanes, is_full

    def _emptiest(self, tops: np.ndarray, lanes: np.ndarray) -> int:
        use = (self.load[lanes] / self.roads.network.gbps[lanes]).max(axis=1)
        return int(tops[np.argmin(use)])

    def _find_pushable(
        self, tops: np.ndarray, lanes: np.ndarray, is_full: np.ndarray, limit: np.ndarray, flow: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield flows that alone are in the way, with the top that they make room on and the lane to leave."""
        size = self.roads.flows.size
        for place in np.flatnonzero(is_full.sum(axis=1) == 1).tolist():
            full = int(lanes[place][is_full[place]][0])
            needed = self.load[full] + size[flow] - limit[full]
            there = islice(self._members.get(full, ()), self.options.most_asked)
            fitting = (other for other in there if size[other] >= needed and other != flow)
            for other in islice(fitting, self.options.most_pushed):
                yield other, int(tops[place]), full

    def _carry_out(
        self, flow: int, top: int, pushed_by: dict[int, tuple[int, int] | None], limit: np.ndarray
    ) -> bool:
        """Move the flows of a chain, the last one first; undo all where they turn out to be in each other's way."""
        done: list[tuple[int, int]] = []
        entered: list[int] = []
        step: tuple[int, int] | None = (flow, top)
        while step:
            flow, top = step
            done.append((flow, int(self.top[flow])))
            entered += self._move(flow, top)
            step = pushed_by[flow]
        moved = self.moved.union(flow for flow, _ in done)
        if (self.load[entered] <= limit[entered]).all() and len(moved) <= self.options.most_moves:
            self.moved = moved
            return True
        for back, was in reversed(done):
            self._move(back, was)
        return False

    def _move(self, flow: int, top: int) -> list[int]:
        """Put a flow on another road; return the lanes on which it was not before."""
        own = self._lanes_now(flow)
        self.load[own] -= self.roads.flows.size[flow]
        for lane in own.tolist():
            del self._members[lane][flow]
        lanes = self.roads.lanes(flow, np.array([top]))[0]
        self._put(flow, top, lanes)
        return [lane for lane in lanes.tolist() if lane not in own]

    def _put(self, flow: int, top: int, lanes: np.ndarray) -> None:
        if self.top[flow] == UNPLACED:
            self.load[self.roads.flows.ends[flow]] += self.roads.flows.size[flow]
        self.top[flow] = top
        self.load[lanes] += self.roads.flows.size[flow]
        if self._members:
            for lane in lanes.tolist():
                self._members.setdefault(lane, {})[flow] = None

    def _lanes_now(self, flow: int) -> np.ndarray:
        lanes: np.ndarray = self.roads.lanes(flow, self.top[flow : flow + 1])[0]
        return lanes

    def _index(self) -> None:
        """Note who is on which lane, once."""
        if self._members:
            return
        for level in range(1, len(self.roads.network.climbs) + 1):
            at = np.flatnonzero((self.roads.height == level) & (self.top != UNPLACED))
            if not len(at):
                continue
            lanes = self.roads.lanes_of(at, self.top[at])
            for flow, road in zip(at.tolist(), lanes.tolist(), strict=True):
                for lane in road:
                    self._members.setdefault(lane, {})[flow] = None
