"""What ports count while operations run: bytes, and what becomes of packets that find a link slow or lossy.

A flow is held up at the link that bounds its rate, unless that is its own healthy NIC. On sockets the port in front
of that link drops packets, and the sender sends them again. On IB nothing is dropped: every port on the way to that
link is told to pause. Packets that a link loses are counted where they are missed and are sent again, too.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.clock import NS_PER_S
from lockstep.fair_rates import fair_rates
from lockstep.topology import split_end
from simulator.conditions import Condition, Conditions
from simulator.faults import Fault, Interval, active_faults, intervals_of, is_within, merge_intervals
from simulator.job import place_ranks
from simulator.network import Network
from simulator.operations import Operation, Transfers
from simulator.pairs import NEVER, Codes, Flags, Floats, Ints, Times
from simulator.scenario import Scenario

_NETWORK_KINDS = ("nic", "link", "switch")


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
    def lost(self) -> Floats:
        return 1 - (1 - self.unsent) * (1 - self.broken) * (1 - self.swallowed)


class LinkFaults:
    """Answers about the links of one scenario, by the same conditions that its operations run under."""

    def __init__(self, scenario: Scenario, network: Network) -> None:
        self.links = network.links
        self._scenario, self._network = scenario, network
        self._placement = place_ranks(scenario)  # links are the same for every attempt
        self._conditions = Conditions(scenario.timeline, network, self._placement, scenario.cluster.transport)
        self._known: dict[int, Trouble] = {}
        ends = [(split_end(link.a), split_end(link.b)) for link in network.links]
        self._sender = np.array([node for (a, _), (b, _) in ends for node in (a, b)])
        # A host's end names its NIC; what is no link ends nowhere.
        self._ends_at_switch = np.array([port is None for a, b in ends for _, port in (b, a)] + [False])
        self.intervals = self._find_outages()

    def at(self, now_ns: float, size: int, spared: frozenset[Fault] = frozenset()) -> Trouble:
        """Return what operations of a size meet; the same state is the same object."""
        condition = self._conditions.at(now_ns, size, spared)
        if id(condition) not in self._known:
            active = active_faults(self._scenario.timeline, now_ns / NS_PER_S)
            there = [fault for fault in active if fault not in spared and fault.above_bytes <= size]
            losing = [fault for fault in there if fault.effect in ("losing", "rate") and fault.kind in _NETWORK_KINDS]
            self._known[id(condition)] = self._judge(condition, losing, now_ns / NS_PER_S)
        return self._known[id(condition)]

    def links_of(self, fault: Fault) -> Ints:
        """Return the directed links that a fault concerns."""
        return np.array(self._conditions.links_of(fault), np.int64)

    def down_at(self, now_s: float) -> Flags:
        """Return which links have no carrier, by link and not by direction: both ends lose it."""
        down = np.zeros(len(self._network.links), bool)
        for number, intervals in self.intervals.items():
            down[number] = is_within(intervals, now_s)
        return down

    def dead_switches(self, now_s: float) -> set[str]:
        """Return the switches that are down as a whole and so tell nothing."""
        faults = active_faults(self._scenario.timeline, now_s)
        return {fault.name for fault in faults if fault.effect == "down" and fault.kind == "switch"}

    def _find_outages(self) -> dict[int, list[Interval]]:
        """Return when links are down, by link: for themselves, or because the host at their end is off."""
        found: dict[int, list[Interval]] = {}
        for fault in self._scenario.timeline:
            if fault.effect in ("down", "over", "gone"):
                intervals = intervals_of(fault, self._scenario.timeline, self._scenario.duration_s)
                if fault.effect == "gone":  # with all its cables
                    links = np.flatnonzero([split_end(link.a)[0] == fault.name for link in self._network.links])
                else:
                    links = self.links_of(fault) // 2
                for number in set(links.tolist()):
                    found[number] = merge_intervals(found.get(number, []) + intervals)
        return found

    def _judge(self, condition: Condition, faults: list[Fault], now_s: float) -> Trouble:
        links = len(condition.capacity)
        unsent, broken, swallowed = np.zeros(links), np.zeros(links), np.zeros(links)
        trouble = Trouble(condition, unsent, broken, swallowed, np.zeros(links, bool), self._ends_at_switch)
        for fault in faults:
            mine = self.links_of(fault)
            is_sent = self._sender[mine] == fault.name.partition("/")[0]  # by the part itself, unless it is a link
            if fault.effect == "losing":
                loss = (fault.amount or 0.0) * fault.level(now_s)
                seen_by_sender = {"nic": unsent, "switch": swallowed}.get(fault.kind, broken)
                seen_by_sender[mine[is_sent]] = broken[mine[~is_sent]] = loss
            elif fault.effect == "rate" and fault.kind != "link":
                trouble.is_slow_taker[mine[~is_sent]] = True
        return trouble


Amounts = NDArray[Any]  # numbers of any kind: frames come in parts, bytes do not

_FRAME_BYTES = 4096  # RoCE's usual MTU; a segment of TCP with jumbo frames is twice that
_DROPPED = 0.02  # of what TCP sends into a shaped port: a guess; retransmissions of that order were measured
_PAUSE_BYTES = 65_536  # that a switch takes before it sends another pause frame
_HEALTHY = 0.05  # of that where a healthy link is full: it has its buffers, and the ends know its rate
_NOT_HELD = -1
_MOST_KNOWN = 512  # states of flows that are remembered: 16 MB of a job of 16,384 ranks


class Tally:
    """Sums that grow by the second: what ends within a second counts in all readings from its end on."""

    def __init__(self, width: int) -> None:
        self._total = np.zeros(width)
        self._waiting: dict[int, Floats] = {}

    def add(self, timestamps_ns: Times, indices: Ints, amounts: Amounts) -> None:
        """Add amounts at their indices; `moments_ns` says when each row of them ends."""
        seconds = (timestamps_ns // NS_PER_S).astype(np.int64)
        first, last = (int(seconds.min()), int(seconds.max())) if len(seconds) else (0, -1)
        for second in range(first, last + 1) if last - first < 2 else np.unique(seconds).tolist():
            now = slice(None) if first == last else seconds == second
            fresh = np.bincount(indices[now].ravel(), amounts[now].ravel(), len(self._total))
            self._waiting[second] = self._waiting.get(second, 0.0) + fresh.astype(np.float64, copy=False)

    def at(self, second: int) -> Floats:
        """Return the sums at the beginning of a second; it is not asked for an earlier one any more."""
        for over in sorted(each for each in self._waiting if each < second):
            self._total += self._waiting.pop(over)
        return self._total


class Traffic:
    """Follows the transfers of operations; all sums are by directed link, `sent_again` is by NIC."""

    def __init__(self, network: Network, link_faults: LinkFaults, nics: int, is_ib: bool) -> None:
        self._nominal = network.capacity
        self._link_faults, self._is_ib = link_faults, is_ib
        self._held: dict[tuple[bytes, int], Codes] = {}
        links = len(network.capacity)
        self.bytes, self.unsent, self.broken = Tally(links), Tally(links), Tally(links)
        self.dropped = Tally(links)  # by whoever sends into the link
        self.refused = Tally(links)  # by a slow switch at its end
        self.paused = Tally(links)  # frames with which whoever receives stops whoever sends
        self.sent_again = Tally(nics)

    def note(self, operation: Operation, spared: frozenset[Fault]) -> None:
        """Count the transfers of an operation; a send and its receive are two operations with the same transfers."""
        moved = operation.transfers
        if moved is None or "send" not in operation.sides:
            return
        done = moved.send_last < NEVER / 2
        if not done.any():
            return
        begin_ns = float(moved.send_first[done].min())
        trouble = self._link_faults.at(begin_ns, int(operation.bytes.mean()), spared)
        _add_along(self.bytes, moved, done, moved.bytes)
        if trouble.lost.any():
            self._count_losses(moved, done, trouble)
        held = self._held_at(moved, trouble)
        if (held[done] != _NOT_HELD).any():
            self._count_congestion(moved, done & (held != _NOT_HELD), held, trouble)

    def _count_losses(self, moved: Transfers, done: Flags, trouble: Trouble) -> None:
        frames = moved.bytes / _FRAME_BYTES
        tallies = (self.unsent, self.broken, self.dropped)
        for tally, share in zip(tallies, (trouble.unsent, trouble.broken, trouble.swallowed), strict=True):
            _add_along(tally, moved, done, frames[:, None] * share[moved.paths])
        again = frames * (1 - np.prod(1 - trouble.lost[moved.paths], axis=1))
        self.sent_again.add(moved.send_last[done], moved.tx_nic[done], again[done])

    def _count_congestion(self, moved: Transfers, stopped: Flags, held: Codes, trouble: Trouble) -> None:
        tight = moved.paths[np.arange(len(held)), held]
        weight = np.where(trouble.condition.capacity[tight] < self._nominal[tight], 1.0, _HEALTHY)
        if self._is_ib:
            upto = held + trouble.is_slow_taker[tight]  # who takes slowly stops the port in front of it, too
            before = np.arange(moved.paths.shape[1]) < upto[:, None]
            _add_along(self.paused, moved, stopped, before * (moved.bytes / _PAUSE_BYTES * weight)[:, None])
            return
        lost = moved.bytes / _FRAME_BYTES * _DROPPED * weight
        self.sent_again.add(moved.send_last[stopped], moved.tx_nic[stopped], lost[stopped])
        is_refused = trouble.is_slow_taker[tight] & trouble.ends_at_switch[tight]
        for tally, mine in ((self.refused, stopped & is_refused), (self.dropped, stopped & ~is_refused)):
            tally.add(moved.send_last[mine], tight[mine], lost[mine])

    def _held_at(self, moved: Transfers, trouble: Trouble) -> Codes:
        """Return which hop of each flow bounds it, worked out once for flows that go on together; -1 for none."""
        key = (hashlib.blake2b(moved.paths.tobytes(), digest_size=16).digest(), id(trouble))
        if key not in self._held:
            held = find_tight_hop(moved.paths, trouble.condition.capacity, self._nominal)
            tight = moved.paths[np.arange(len(held)), held]
            # Loss makes the ends slow down; nothing piles up in front of a lossy link.
            if len(self._held) >= _MOST_KNOWN:
                self._held.clear()
            self._held[key] = np.where(trouble.lost[tight] > 0, _NOT_HELD, held).astype(np.int8)
        return self._held[key]


def find_tight_hop(paths: Ints, capacity: Floats, nominal: Floats) -> Ints:
    """Return the hop at which packets of each flow pile up, -1 where they do not leave their NIC any faster.

    That is the first link that is full and of which no other flow gets more: its bottleneck in the sense of max-min
    fairness. A healthy NIC that is full makes its own host wait, and no packet is lost for that.

    >>> find_tight_hop(np.array([[0, 1], [2, 3]]), np.array([1.0, 0.5, 1.0, 1.0]), np.ones(4)).tolist()
    [1, -1]
    """
    rates = fair_rates(paths, capacity)
    load = np.bincount(paths.ravel(), np.repeat(rates, paths.shape[1]), len(capacity))
    most = np.zeros(len(capacity))
    np.maximum.at(most, paths.ravel(), np.repeat(rates, paths.shape[1]))
    is_full = load >= capacity * (1 - 1e-6)
    bounds = is_full[paths] & (rates[:, None] >= most[paths] * (1 - 1e-6))
    hop = np.where(bounds.any(axis=1), bounds.argmax(axis=1), _NOT_HELD)
    own = paths[:, 0]
    return np.where((hop == 0) & (capacity[own] >= nominal[own]), _NOT_HELD, hop)


def _add_along(tally: Tally, moved: Transfers, which: Flags, amounts: Amounts) -> None:
    """Add amounts of some transfers to the links on their way; one for all of them, or one for each hop."""
    every = slice(None) if which.all() else which
    paths, mine = moved.paths[every], amounts[every]
    each = np.broadcast_to(mine if mine.ndim == 2 else mine[:, None], paths.shape)
    tally.add(moved.send_last[every], paths, each)
