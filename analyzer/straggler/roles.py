"""Which ranks do the same work, told by what they do: families of communicators, and stages of pipelines."""

from dataclasses import dataclass

import numpy as np

from analyzer.straggler.kernels import mix

_UNEVEN = 1.5  # more often than that to the same neighbour as others is another place in a pipeline
_MOST_STAGES = 256  # of a pipeline; longer, and links lead back to where they came from
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
    comms, index = np.unique(comm, return_inverse=True)
    index = index.reshape(-1)
    pairwise = np.flatnonzero(peer >= 0)
    chains = _find_chains(index[pairwise], rank[pairwise], peer[pairwise], sends[pairwise], len(comms))
    is_chain = np.zeros(len(index), bool)
    is_chain[pairwise] = chains[index[pairwise]]
    links = (index[is_chain], rank[is_chain], peer[is_chain])
    role = _find_stages(process[is_chain], *links, processes)
    return Roles(_find_families(process, index, len(comms), processes)[index], is_chain, role)


def _find_stages(
    process: np.ndarray, index: np.ndarray, rank: np.ndarray, peer: np.ndarray, processes: int
) -> np.ndarray:
    """Return a number per process, equal for those as far from both ends of their pipelines; 0: in no pipeline.

    A pipeline may be one communicator, or one of two ranks between any two stages: then a rank's place in each of
    them says nothing, and its stage is how many lie before it when the links of all communicators are followed.
    """
    stage = np.zeros(processes, np.uint64)
    if len(index) == 0:
        return stage
    span = int(max(rank.max(), peer.max())) + 1
    near, far = index * span + rank, index * span + peer
    seats, number = np.unique(np.concatenate([near, far]), return_inverse=True)
    node_of = processes + np.arange(len(seats))  # who tells nothing is somebody too
    ends = number.reshape(2, -1)
    node_of[ends[0]] = process
    ends = np.where(rank < peer, node_of[ends], node_of[ends[::-1]])
    first, last = np.divmod(np.unique(ends[0] * (processes + len(seats)) + ends[1]), processes + len(seats))
    before, behind = (_count_steps(*link, processes) for link in ((first, last), (last, first)))
    in_chain = np.unique(process)
    stage[in_chain] = mix(before[in_chain] + 1, behind[in_chain] + 1)
    return stage


def _count_steps(first: np.ndarray, last: np.ndarray, processes: int) -> np.ndarray:
    """Return for each process over how many links at most it is reached; its own number where links go round."""
    steps = np.zeros(int(max(first.max(), last.max(), processes)) + 1, np.int64)
    for _ in range(_MOST_STAGES):
        further = steps.copy()
        np.maximum.at(further, last, steps[first] + 1)
        if (further == steps).all():
            return steps[:processes]
        steps = further
    return np.arange(processes)


def _find_families(process: np.ndarray, index: np.ndarray, comms: int, processes: int) -> np.ndarray:
    """Return a number per communicator, the same for those whose members lie alike."""
    families = np.zeros(comms, np.uint64)
    if comms == 1:  # it is alike to itself, whoever is in it
        return families
    where, who = np.divmod(np.unique(index * processes + process), processes)
    order = np.arange(len(who)) - np.searchsorted(where, np.arange(comms))[where]
    apart = np.where(order > 0, who - np.roll(who, 1), 0)
    np.add.at(families, where, mix(order + 1, apart))
    return families


def _find_chains(index: np.ndarray, rank: np.ndarray, peer: np.ndarray, sends: np.ndarray, comms: int) -> np.ndarray:
    """Say of each communicator whether its sends and receives look different from different places."""
    chains = np.zeros(comms, bool)
    if len(index) == 0:
        return chains
    size = np.zeros(comms, np.int64)
    np.maximum.at(size, index, np.maximum(rank, peer) + 1)
    # Places, ways and ranks become whole numbers that fit into 64 bits: sorting those is far faster than rows.
    span = int(size.max())
    actors = np.bincount(np.unique(index * span + rank) // span, minlength=comms)
    direction = (index * span + (peer - rank) % size[index]) * 2 + sends
    directions, number = np.unique(direction, return_inverse=True)
    seats, counts = np.unique(number.reshape(-1) * span + rank, return_counts=True)
    begins = np.searchsorted(seats, np.arange(len(directions)) * span)
    ranks = np.diff(np.append(begins, len(seats)))
    most, least = np.maximum.reduceat(counts, begins), np.minimum.reduceat(counts, begins)
    whose = directions // 2 // span
    # Of two ranks each is the other's only neighbour: what they do cannot tell a chain from an exchange.
    uneven = (ranks < actors[whose]) | (most > _UNEVEN * least + _EDGE) | (size[whose] <= 2)
    chains[whose[uneven]] = True
    return chains
