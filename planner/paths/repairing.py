"""A plan put right: flows off what is dead or too full, each onto a path with room, or one where room can be made.

A flow that finds no path with room may push another one off the one link that is too full, which then looks for a
path itself, and so on: the shortest such chain is found by a breadth-first search and carried out from its end. On
two tiers this contains the alternating chains of edge colouring, so it seldom fails where a plan exists. Links are
directed ones throughout.

Cost: a few array operations per flow that is moved; nothing for those that stay.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from planner.paths.flows import UNPLACED, FlowPaths, find_use

_SLACK = 1e-9  # of a rate: sums of floats are no exact numbers
_MOST_TRIED = 300  # flows in one search for a chain; found chains need few, and failures cost all of them
_MOST_PUSHED = 4  # flows of one full link that are asked to make room for a certain one
_MOST_ASKED = 64  # flows that are looked at for that: most may be too small to make enough


@dataclass(slots=True)
class Repair:
    """A plan while it is being changed: spines, loads, and who is on which link."""

    paths: FlowPaths
    spine: np.ndarray
    most_moves: float = float("inf")  # flows that may move at all besides those that must
    load: np.ndarray = field(init=False)
    moved: set[int] = field(default_factory=set)
    _members: dict[int, dict[int, None]] = field(default_factory=dict)  # ordered, so that results are repeatable

    def __post_init__(self) -> None:
        self.load = self.paths.find_loads(self.spine)

    def find_highest(self) -> float:
        """Return the highest use of a link between switches."""
        use = find_use(self.paths.network, self.load)[self.paths.network.fabric]
        return float(use.max(initial=0.0))

    def place(self, flows: np.ndarray) -> None:
        """Give flows without a path the one on which the fullest link is the emptiest, the largest flows first."""
        order = flows[np.argsort(-self.paths.flows.size[flows], kind="stable")]
        gbps = self.paths.network.gbps
        for flow in order.tolist():
            spines = self.paths.spines(flow)
            if not len(spines):
                continue
            links = self.paths.links(flow, spines)
            use = (self.load[links] + self.paths.flows.size[flow]) / gbps[links]
            # The sum decides among equals; it is less than any difference in the maximum that matters.
            best = int(np.argmin(use.max(axis=1) + 1e-6 * use.sum(axis=1)))
            self._put(flow, int(spines[best]), links[best])

    def lower(self, most: float) -> bool:
        """Bring the use of every link between switches to `most`; return whether that was possible."""
        network = self.paths.network
        limit = most * network.gbps * (1 + _SLACK)
        self._index()
        over = np.flatnonzero((self.load > limit) & network.fabric)
        over = over[np.argsort(limit[over] - self.load[over], kind="stable")]
        return all(self._relieve(link, limit) for link in over.tolist())

    def _relieve(self, link: int, limit: np.ndarray) -> bool:
        while self.load[link] > limit[link]:
            if len(self.moved) >= self.most_moves or not self._find_chain(link, limit):
                return False
        return True

    def _find_chain(self, link: int, limit: np.ndarray) -> bool:
        """Move one flow off a link, and others to make room for it; return whether that was possible."""
        near, far, size = self.paths.flows.near, self.paths.flows.far, self.paths.flows.size
        # Of flows that are equal in size and leaves, only the newest is tried.
        starts = list({(near[flow], far[flow], size[flow]): flow for flow in self._members[link]}.values())
        pushed_by: dict[int, tuple[int, int] | None] = dict.fromkeys(starts)  # who pushes it, and onto which spine
        waiting = deque((flow, link) for flow in starts)
        tried = 0
        while waiting and tried < _MOST_TRIED:
            flow, off = waiting.popleft()
            tried += 1
            spines, links, is_full = self._find_candidates(flow, off, limit)
            free = ~is_full.any(axis=1)
            if free.any() and self._carry_out(flow, self._emptiest(spines[free], links[free]), pushed_by, limit):
                return True
            for other, spine, full in self._find_pushable(spines, links, is_full, limit, flow):
                if other not in pushed_by:
                    pushed_by[other] = flow, spine
                    waiting.append((other, full))
        return False

    def _find_candidates(self, flow: int, off: int, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the spines that avoid a link, their links, and which of those have no room for the flow."""
        spines = self.paths.spines(flow)
        links = self.paths.links(flow, spines)
        avoids = (links != off).all(axis=1)
        spines, links = spines[avoids], links[avoids]
        size, own = self.paths.flows.size[flow], self._links_now(flow)
        is_full = (self.load[links] + size > limit[links]) & ~np.isin(links, own)  # where it is, it is already
        return spines, links, is_full

    def _emptiest(self, spines: np.ndarray, links: np.ndarray) -> int:
        use = (self.load[links] / self.paths.network.gbps[links]).max(axis=1)
        return int(spines[np.argmin(use)])

    def _find_pushable(
        self, spines: np.ndarray, links: np.ndarray, is_full: np.ndarray, limit: np.ndarray, flow: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield flows that alone are in the way, with the spine that they make room on and the link to leave."""
        size = self.paths.flows.size
        for index in np.flatnonzero(is_full.sum(axis=1) == 1).tolist():
            full = int(links[index][is_full[index]][0])
            needed = self.load[full] + size[flow] - limit[full]
            there = islice(self._members.get(full, ()), _MOST_ASKED)
            fitting = (other for other in there if size[other] >= needed and other != flow)
            for other in islice(fitting, _MOST_PUSHED):
                yield other, int(spines[index]), full

    def _carry_out(
        self, flow: int, spine: int, pushed_by: dict[int, tuple[int, int] | None], limit: np.ndarray
    ) -> bool:
        """Move the flows of a chain, the last one first; undo all where they turn out to be in each other's way."""
        done: list[tuple[int, int]] = []
        entered: list[int] = []
        step: tuple[int, int] | None = (flow, spine)
        while step:
            flow, spine = step
            done.append((flow, int(self.spine[flow])))
            entered += self._move(flow, spine)
            step = pushed_by[flow]
        moved = self.moved.union(flow for flow, _ in done)
        if (self.load[entered] <= limit[entered]).all() and len(moved) <= self.most_moves:
            self.moved = moved
            return True
        for back, was in reversed(done):
            self._move(back, was)
        return False

    def _move(self, flow: int, spine: int) -> list[int]:
        """Put a flow on another path; return the links on which it was not before."""
        own = self._links_now(flow)
        self.load[own] -= self.paths.flows.size[flow]
        for link in own.tolist():
            del self._members[link][flow]
        links = self.paths.links(flow, np.array([spine]))[0]
        self._put(flow, spine, links)
        return [link for link in links.tolist() if link not in own]

    def _put(self, flow: int, spine: int, links: np.ndarray) -> None:
        if self.spine[flow] == UNPLACED:
            self.load[self.paths.flows.ends[flow]] += self.paths.flows.size[flow]
        self.spine[flow] = spine
        self.load[links] += self.paths.flows.size[flow]
        if self._members:
            for link in links.tolist():
                self._members.setdefault(link, {})[flow] = None

    def _links_now(self, flow: int) -> np.ndarray:
        links: np.ndarray = self.paths.links(flow, self.spine[flow : flow + 1])[0]
        return links

    def _index(self) -> None:
        """Note who is on which link, once."""
        if self._members:
            return
        for at, links in self.paths.placed(self.spine):
            for flow, path in zip(at.tolist(), links.tolist(), strict=True):
                for link in path:
                    self._members.setdefault(link, {})[flow] = None
