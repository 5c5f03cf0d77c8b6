"""The wires between NICs: which links a flow takes, and what is left for it when others take them too.

Links work both ways and are counted twice, once per direction. A flow between leaves takes one of the spines that
both leaves reach, chosen by a hash of its five-tuple as a switch with ECMP does, or as a plan says. Rates are max-min
fair: nobody can get more without somebody who has less getting still less. Reference: progressive filling (Bertsekas
and Gallager, Data Networks). Cost: O(flows) per distinct rate that comes out.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import BadStory
from lockstep.topology import Topology, split_end

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BYTES_PER_NS = 1 / 8  # at 1 Gb/s
_HOPS = 4  # up to the leaf, to a spine, to the other leaf, down to the host


class Network:
    """The links of a topology by number: 2 n from a to b and 2 n + 1 back for the n-th link; the last is no link."""

    def __init__(self, topology: Topology, nics_per_host: int) -> None:
        self.links = topology.links
        self.nowhere = 2 * len(topology.links)
        self.capacity = np.append(np.repeat([link.gbps * BYTES_PER_NS for link in topology.links], 2), np.inf)
        switches = [switch.id for switch in topology.switches]
        self._switch = {name: number for number, name in enumerate(switches)}
        self._between = np.full((len(switches), len(switches)), -1)  # directed link from a switch to another
        hosts = {host.id: number for number, host in enumerate(topology.hosts)}
        nics = len(hosts) * nics_per_host
        self._up, self._down, self._leaf = (np.full(nics, -1) for _ in range(3))
        self._learn(hosts, nics_per_host)
        self._reach = (self._between >= 0) & (self._between.T >= 0)

    def _learn(self, hosts: dict[str, int], nics_per_host: int) -> None:
        for number, link in enumerate(self.links):
            (a, a_port), (b, _) = split_end(link.a), split_end(link.b)
            if a in hosts:  # fabrics name the host first
                nic = hosts[a] * nics_per_host + int((a_port or "eth0").removeprefix("eth"))
                self._up[nic], self._down[nic], self._leaf[nic] = 2 * number, 2 * number + 1, self._switch[b]
            else:
                low, high = self._switch[a], self._switch[b]
                self._between[low, high], self._between[high, low] = 2 * number, 2 * number + 1

    def choose_paths(self, src: Ints, dst: Ints, keys: Ints) -> Ints:
        """Return the directed links of each flow from NIC to NIC, four a row, filled up with `nowhere`.

        `keys` choose among the spines that both leaves reach: hashes for ECMP, or numbers in turn for a plan.
        """
        paths = np.full((len(src), _HOPS), self.nowhere)
        paths[:, 0], paths[:, 3] = self._up[src], self._down[dst]
        for leaves in set(zip(self._leaf[src].tolist(), self._leaf[dst].tolist(), strict=True)):
            if leaves[0] != leaves[1]:
                mine = np.flatnonzero((self._leaf[src] == leaves[0]) & (self._leaf[dst] == leaves[1]))
                self._cross(paths, mine, leaves, keys)
        return paths

    def _cross(self, paths: Ints, flows: Ints, leaves: tuple[int, int], keys: Ints) -> None:
        spines = np.flatnonzero(self._reach[leaves[0]] & self._reach[leaves[1]])
        if not len(spines):
            raise BadStory("two NICs of one job have no way to each other: planes are never joined")
        chosen = spines[keys[flows] % len(spines)]
        paths[flows, 1] = self._between[leaves[0], chosen]
        paths[flows, 2] = self._between[chosen, leaves[1]]

    def links_of(self, name: str) -> list[int]:
        """Return the numbers of a link, in the direction it is written in and back, by its name in verdicts."""
        number = next(number for number, link in enumerate(self.links) if f"{link.a}--{link.b}" == name)
        return [2 * number, 2 * number + 1]

    def links_at(self, switch: str) -> list[int]:
        """Return all directed links of a switch."""
        ends = [(split_end(link.a)[0], split_end(link.b)[0]) for link in self.links]
        return [2 * number + way for number, pair in enumerate(ends) if switch in pair for way in (0, 1)]

    def links_of_nic(self, nic: int) -> tuple[int, int]:
        """Return the directed links out of a NIC and into it."""
        return int(self._up[nic]), int(self._down[nic])

    def links_between_switches(self) -> Ints:
        return self._between[self._between >= 0]

    def in_turn(self, src: Ints, dst: Ints) -> Ints:
        """Return keys that spread the flows that leave a leaf evenly over its spines."""
        keys = np.zeros(len(src), np.int64)
        away = np.flatnonzero(self._leaf[src] != self._leaf[dst])
        order = away[np.argsort(self._leaf[src][away], kind="stable")]
        leaves = self._leaf[src][order]
        keys[order] = np.arange(len(order)) - np.searchsorted(leaves, leaves)
        return keys


def flow_key(*words: object) -> int:
    """Return a number that is as good as random, and the same each time: the hash of a five-tuple."""
    return zlib.crc32(":".join(map(str, words)).encode())


def fair_rates(paths: Ints, capacity: Floats) -> Floats:
    """Return the max-min fair rate of each flow, given the links it takes and what each link carries.

    >>> fair_rates(np.array([[0, 2], [0, 1], [1, 2]]), np.array([1.0, 10.0, np.inf])).tolist()
    [0.5, 0.5, 9.5]
    """
    left, rates = capacity.copy(), np.zeros(len(paths))
    todo = np.arange(len(paths))
    while len(todo):
        count = np.bincount(paths[todo].ravel(), minlength=len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        mine = share[paths[todo]].min(axis=1)
        settled = mine <= mine.min() * (1 + 1e-9)
        rates[todo[settled]] = mine[settled]
        used = np.repeat(mine[settled], paths.shape[1])
        left = np.maximum(left - np.bincount(paths[todo[settled]].ravel(), used, len(capacity)), 0.0)
        todo = todo[~settled]
    return rates
