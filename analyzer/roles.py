"""Who does the same work: parallel groups and pipeline stages, read off the communicators and who sends to whom.

No layout is needed. Communicators whose members lie alike in the job (every fourth rank, eight in a row) are a
family: their operations of one number happen next to each other. Ranks of a communicator do the same work, unless
they send and receive in a chain: then their place in it is their stage. A ring or an all-to-all looks the same from
everybody's place and makes no stages.

Cost: O(rows log rows).
"""

from dataclasses import dataclass

import numpy as np

_UNEVEN = 1.5  # more often than that to the same neighbour as others is another place in a pipeline
_EDGE = 2  # operations that one rank may have more in a window than another, only because it is cut there
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring numbers land far apart


@dataclass(frozen=True)
class Roles:
    """A number for each row's family of communicators, and for each process its role."""

    family_of: np.ndarray  # of each row
    is_chain: np.ndarray  # of each row: whether it is a send or receive in a pipeline
    role_of: np.ndarray  # of each process; equal numbers do the same work


def find_roles(
    process: np.ndarray, comm: np.ndarray, rank: np.ndarray, peer: np.ndarray, sends: np.ndarray, processes: int
) -> Roles:
    """Return families and roles as rows of operations tell them; a peer of -1 is no send or receive."""
    comms, place = np.unique(comm, return_inverse=True)
    place = place.reshape(-1)
    chains = _find_chains(place, rank, peer, sends, len(comms))
    is_chain = chains[place] & (peer >= 0)
    role = np.zeros(processes, np.uint64)
    seat = np.unique(mix(place[is_chain], rank[is_chain]), return_index=True)[1]  # each place in each chain once
    np.add.at(role, process[is_chain][seat], mix(rank[is_chain][seat] + 1))
    return Roles(_find_families(process, place, len(comms), processes)[place], is_chain, role)


def mix(*numbers: np.ndarray) -> np.ndarray:
    """Return one well-spread number for each row of several."""
    mixed = np.zeros(len(numbers[0]), np.uint64)
    for column in numbers:
        mixed = (mixed ^ column.astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _find_families(process: np.ndarray, place: np.ndarray, comms: int, processes: int) -> np.ndarray:
    """Return a number per communicator, the same for those whose members lie alike."""
    where, who = np.divmod(np.unique(place * processes + process), processes)
    order = np.arange(len(who)) - np.searchsorted(where, np.arange(comms))[where]
    apart = np.where(order > 0, who - np.roll(who, 1), 0)
    families = np.zeros(comms, np.uint64)
    np.add.at(families, where, mix(order + 1, apart))
    return families


def _find_chains(place: np.ndarray, rank: np.ndarray, peer: np.ndarray, sends: np.ndarray, comms: int) -> np.ndarray:
    """Say of each communicator whether its sends and receives look different from different places."""
    pairwise = peer >= 0
    if not pairwise.any():
        return np.zeros(comms, bool)
    place, rank, peer, sends = place[pairwise], rank[pairwise], peer[pairwise], sends[pairwise]
    size = np.zeros(comms, np.int64)
    np.maximum.at(size, place, np.maximum(rank, peer) + 1)
    ways, counts = np.unique(
        np.stack([place, sends, (peer - rank) % size[place], rank], axis=1), axis=0, return_counts=True
    )
    actors = np.bincount(np.unique(ways[:, [0, 3]], axis=0)[:, 0], minlength=comms)
    begins = np.flatnonzero(np.r_[True, (np.diff(ways[:, :3], axis=0) != 0).any(axis=1)])
    ranks, most, least = (
        np.add.reduceat(np.ones(len(counts), np.int64), begins),
        np.maximum.reduceat(counts, begins),
        np.minimum.reduceat(counts, begins),
    )
    whose = ways[begins, 0]
    # Of two ranks each is the other's only neighbour: what they do cannot tell a chain from an exchange.
    uneven = (ranks < actors[whose]) | (most > _UNEVEN * least + _EDGE) | (size[whose] <= 2)
    chains = np.zeros(comms, bool)
    chains[whose[uneven]] = True
    return chains
