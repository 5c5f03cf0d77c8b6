"""Who does the same work: parallel groups and pipeline stages, read off the communicators and who sends to whom.

No layout is needed. Communicators whose members lie alike in the job (every fourth rank, eight in a row) are a
family: their operations of one number happen next to each other. Ranks of a communicator do the same work, unless
they send and receive in a chain: then their place in it is their stage. A ring or an all-to-all looks the same from
everybody's place and makes no stages.

Cost: O(rows log rows).
"""

from dataclasses import dataclass

import numpy as np

from analyzer.numeric.mixing import mix

_UNEVEN = 1.5  # more often than that to the same neighbour as others is another place in a pipeline
_EDGE = 2  # operations that one rank may have more in a window than another, only because it is cut there


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
    pairwise = np.flatnonzero(peer >= 0)
    chains = _find_chains(place[pairwise], rank[pairwise], peer[pairwise], sends[pairwise], len(comms))
    is_chain = np.zeros(len(place), bool)
    is_chain[pairwise] = chains[place[pairwise]]
    role = np.zeros(processes, np.uint64)
    seat = np.unique(mix(place[is_chain], rank[is_chain]), return_index=True)[1]  # each place in each chain once
    np.add.at(role, process[is_chain][seat], mix(rank[is_chain][seat] + 1))
    return Roles(_find_families(process, place, len(comms), processes)[place], is_chain, role)


def _find_families(process: np.ndarray, place: np.ndarray, comms: int, processes: int) -> np.ndarray:
    """Return a number per communicator, the same for those whose members lie alike."""
    families = np.zeros(comms, np.uint64)
    if comms == 1:  # it is alike to itself, whoever is in it
        return families
    where, who = np.divmod(np.unique(place * processes + process), processes)
    order = np.arange(len(who)) - np.searchsorted(where, np.arange(comms))[where]
    apart = np.where(order > 0, who - np.roll(who, 1), 0)
    np.add.at(families, where, mix(order + 1, apart))
    return families


def _find_chains(place: np.ndarray, rank: np.ndarray, peer: np.ndarray, sends: np.ndarray, comms: int) -> np.ndarray:
    """Say of each communicator whether its sends and receives look different from different places."""
    chains = np.zeros(comms, bool)
    if len(place) == 0:
        return chains
    size = np.zeros(comms, np.int64)
    np.maximum.at(size, place, np.maximum(rank, peer) + 1)
    # Places, ways and ranks become whole numbers that fit into 64 bits: sorting those is far faster than rows.
    span = int(size.max())
    actors = np.bincount(np.unique(place * span + rank) // span, minlength=comms)
    way = (place * span + (peer - rank) % size[place]) * 2 + sends
    ways, number = np.unique(way, return_inverse=True)
    seats, counts = np.unique(number.reshape(-1) * span + rank, return_counts=True)
    begins = np.searchsorted(seats, np.arange(len(ways)) * span)
    ranks = np.diff(np.append(begins, len(seats)))
    most, least = np.maximum.reduceat(counts, begins), np.minimum.reduceat(counts, begins)
    whose = ways // 2 // span
    # Of two ranks each is the other's only neighbour: what they do cannot tell a chain from an exchange.
    uneven = (ranks < actors[whose]) | (most > _UNEVEN * least + _EDGE) | (size[whose] <= 2)
    chains[whose[uneven]] = True
    return chains
