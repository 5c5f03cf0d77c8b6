"""Even shares: a leaf's flows spread over all spines as evenly as whole flows can be, upwards and downwards at once.

Flows are edges between a source and a destination; spines are colours. Every bipartite multigraph can be coloured so
that at each vertex each colour occurs floor(d/S) or ceil(d/S) times (de Werra 1971), so the load of every up-link and
of every down-link is the least that any plan can reach. Even numbers of colours are halved: edges are paired at each
vertex, the pairs of both sides form closed walks, and every second edge of a walk is taken. What is left over at a
leaf is paired within its pod, so pods are shared evenly too, as the links above them need it. Of an odd number one
colour is taken out first, by a matching, which exists because every vertex is cut into copies of S edges each.

Cost: O(E log E log S).
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

Keys = Sequence[np.ndarray]  # of one side: which vertex each edge ends at, then which group of vertices, and so on


def colour_evenly(near: Keys, far: Keys, colours: int) -> np.ndarray:
    """Return a colour for each edge, at each vertex of both sides each colour equally often, give or take one.

    Groups of vertices are shared evenly too where `colours` is a power of two.

    >>> colour_evenly([np.array([0, 0, 1, 1])], [np.array([0, 1, 0, 1])], 2).tolist() in ([0, 1, 1, 0], [1, 0, 0, 1])
    True
    """
    chosen = np.zeros(len(near[0]), np.int64)
    todo = [(np.arange(len(chosen)), 0, colours)]
    while todo:
        edges, first, count = todo.pop()
        if count == 1 or not len(edges):
            chosen[edges] = first
            continue
        if count % 2:
            taken = _take_share(near[0][edges], far[0][edges], count)
            chosen[edges[taken]] = first + count - 1
            edges, count = edges[~taken], count - 1
        half = _split([key[edges] for key in near], [key[edges] for key in far])
        todo += [(edges[half], first, count // 2), (edges[~half], first + count // 2, count // 2)]
    return chosen


def _split(near: Keys, far: Keys) -> np.ndarray:
    """Return half of the edges: at each vertex and in each group half of its edges, give or take one."""
    beside_near, beside_far = _pair(near), _pair(far)
    onward = beside_far[beside_near]  # two edges further along its walk
    lowest = _find_lowest(onward)
    half: np.ndarray = (lowest < lowest[beside_near])[: len(near[0])]
    return half


def _pair(keys: Keys) -> np.ndarray:
    """Return for each edge the one that it is paired with: at its vertex, else in its group, else anywhere.

    An odd number of edges is paired with one more, at the end, which nobody asked for.
    """
    count = len(keys[0])
    partner = np.full(count + count % 2, count, np.int64)
    left = np.arange(count)
    for key in (*keys, np.zeros(count, np.int64)):
        left = left[np.argsort(key[left], kind="stable")]
        values = key[left]
        begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(left) else left
        sizes = np.diff(np.concatenate([begins, [len(left)]]))
        index = np.arange(len(left)) - np.repeat(begins, sizes)
        is_odd_one = (index == np.repeat(sizes, sizes) - 1) & (index % 2 == 0)
        paired = left[~is_odd_one]
        partner[paired[0::2]], partner[paired[1::2]] = paired[1::2], paired[0::2]
        left = left[is_odd_one]
    if len(left):
        partner[count] = left[0]
    return partner


def _find_lowest(onward: np.ndarray) -> np.ndarray:
    """Return the lowest number that is met from each place when walking on, by steps that double."""
    lowest = np.arange(len(onward))
    reach = 1
    while reach < len(onward):
        lowest = np.minimum(lowest, lowest[onward])
        onward = onward[onward]
        reach *= 2
    return lowest


def _take_share(near: np.ndarray, far: np.ndarray, colours: int) -> np.ndarray:
    """Return one edge in `colours` at each vertex, give or take one."""
    left, right = _fill_up(_cut(near, colours), _cut(far, colours), colours)
    size = int(max(left.max(), right.max())) + 1
    edges = csr_array((np.ones(len(left), np.int8), (left, right)), shape=(size, size))
    mate = maximum_bipartite_matching(edges, perm_type="column")
    matched = np.flatnonzero(mate[left] == right)
    # Of edges that lie side by side one is taken, a real one before one that only fills up: those come last.
    firsts = matched[np.unique(left[matched], return_index=True)[1]]
    taken = np.zeros(len(left), bool)
    taken[firsts] = True
    return taken[: len(near)]


def _fill_up(near: np.ndarray, far: np.ndarray, colours: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges and some more, so that each copy has exactly as many as there are colours."""
    copies = int(max(near.max(), far.max())) + 1
    lacking = [np.repeat(np.arange(copies), colours - np.bincount(ends, minlength=copies)) for ends in (near, far)]
    return np.concatenate([near, lacking[0]]), np.concatenate([far, lacking[1]])


def _cut(vertex: np.ndarray, colours: int) -> np.ndarray:
    """Return the copy of its vertex that each edge belongs to: the first `colours` edges, the next, and so on."""
    order = np.argsort(vertex, kind="stable")
    ordered = vertex[order]
    index = np.arange(len(vertex)) - np.searchsorted(ordered, ordered)
    copy = np.empty(len(vertex), np.int64)
    _, copy[order] = np.unique(ordered * (len(vertex) + 1) + index // colours, return_inverse=True)
    return copy
