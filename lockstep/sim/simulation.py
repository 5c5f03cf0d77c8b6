"""A story as it runs: training steps in order, each turned into the operations its ranks would report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.sim.placement import build_rings
from lockstep.sim.ring import RingTimes, Times, run_ring
from lockstep.sim.story import Story, Turn

_NVLINK_GBPS = 2400.0  # one direction inside a host; fast enough never to be what limits a ring
_NS_PER_GBPS_BYTE = 8.0  # a byte takes 8 ns at 1 Gb/s


@dataclass(frozen=True)
class Operation:
    """One all-reduce of the whole job; times are nanoseconds since the story began, one per rank."""

    seq: int
    bytes: int
    enqueue: Times
    start: Times
    end: Times
    ring: RingTimes


class Simulation:
    """Runs a story from its beginning; the same story and seed give the same operations, bit for bit."""

    def __init__(self, story: Story, seed: int) -> None:
        self.story = story
        self.rings = build_rings(story.cluster)
        self._seed = seed
        self._step = 0
        self._seq = 0
        self._free = np.zeros(story.ranks)  # when each rank's stream is free again

    @property
    def now_ns(self) -> int:
        """How far every rank has come: no operation that is still to be reported ends before this."""
        return int(self._free.min())

    def run_until(self, until_ns: int) -> Iterator[Operation]:
        """Yield the operations of all training steps that begin before `until_ns`."""
        while self._free.min() < until_ns:
            yield from self._run_step()

    def _run_step(self) -> Iterator[Operation]:
        random = np.random.default_rng([self._seed, self._step])
        self._step += 1
        broken = _turns_so_far(self.story.timeline, self._free.min() / NS_PER_S)
        self._free = self._free + self._compute_times(random, broken)
        for megabytes in self.story.job.allreduce_mb:
            yield self._all_reduce(megabytes * 1_000_000, random, broken)

    def _compute_times(self, random: np.random.Generator, broken: Sequence[Turn]) -> Times:
        shape = self.story.cluster
        speed = np.ones(self.story.ranks)
        for turn in broken:
            if turn.part.startswith("gpu:"):
                host, gpu = turn.part.removeprefix("gpu:h").split("/")
                speed[int(host) * shape.gpus_per_host + int(gpu)] = turn.rate
        jitter = random.normal(1.0, self.story.noise.compute, self.story.ranks).clip(0.5)
        return self.story.job.compute_ms * 1e6 * jitter / speed

    def _all_reduce(self, size: int, random: np.random.Generator, broken: Sequence[Turn]) -> Operation:
        enqueue = self._free + np.abs(random.normal(0.0, self.story.noise.enqueue_us * 1e3, self.story.ranks))
        start = enqueue + 5e3  # launch latency of a kernel
        ring = run_ring(start[self.rings.rank], self._wire_times(size, random, broken))
        end = _last_per_rank(self.rings.rank, ring.done)
        self._free = end
        operation = Operation(self._seq, size, enqueue, start, end, ring)
        self._seq += 1
        return operation

    def _wire_times(self, size: int, random: np.random.Generator, broken: Sequence[Turn]) -> Times:
        """Return nanoseconds per chunk and edge; edges that share a NIC share its rate."""
        rings, shape = self.rings, self.story.cluster
        channels, places = rings.rank.shape
        tx, rx = self._nic_rates(broken)
        tx_share = tx / np.maximum(_edges_per_nic(rings.tx_nic, rings.crosses, len(tx)), 1)
        rx_share = rx / np.maximum(_edges_per_nic(rings.rx_nic, rings.crosses, len(rx)), 1)
        gbps = np.where(rings.crosses, np.minimum(tx_share[rings.tx_nic], rx_share[rings.rx_nic]), _NVLINK_GBPS)
        jitter = random.normal(1.0, self.story.noise.transfer, gbps.shape).clip(0.5)
        chunk = size / (channels * places)
        wire: Times = (chunk * _NS_PER_GBPS_BYTE / gbps + shape.hop_latency_us * 1e3 * rings.crosses) * jitter
        return wire

    def _nic_rates(self, broken: Sequence[Turn]) -> tuple[Times, Times]:
        shape = self.story.cluster
        tx = np.full(shape.hosts * shape.nics_per_host, shape.nic_gbps)
        rx = tx.copy()
        for turn in broken:
            if turn.part.startswith("nic:"):
                host, nic = turn.part.removeprefix("nic:h").split("/eth")
                for side, rates in (("tx", tx), ("rx", rx)):
                    if turn.side in (None, side):
                        rates[int(host) * shape.nics_per_host + int(nic)] = shape.nic_gbps * turn.rate
        return tx, rx


def _turns_so_far(timeline: Sequence[Turn], now_s: float) -> list[Turn]:
    """Return what has changed until now, in order; a later turn replaces an earlier one of the same part and side."""
    return [turn for turn in sorted(timeline, key=lambda turn: turn.at_s) if turn.at_s <= now_s]


def _edges_per_nic(nic: np.ndarray, crosses: np.ndarray, nics: int) -> np.ndarray:
    return np.bincount(nic[crosses], minlength=nics)


def _last_per_rank(rank: np.ndarray, done: Times) -> Times:
    end = np.zeros(rank.shape[1])
    np.maximum.at(end, rank.ravel(), done.ravel())
    return end
