"""What happens without a plan: each flow takes one of its shortest ways by a hash, that is by chance."""

import numpy as np

from planner.paths.roads import UNPLACED, Roads


def choose_by_chance(roads: Roads, seed: int) -> np.ndarray:
    """Return a top for each flow, all that it may use equally likely."""
    rng = np.random.default_rng(seed)
    top = np.full(len(roads.flows), UNPLACED, np.int64)
    for level, usable in enumerate(roads.usable, start=1):
        at = np.flatnonzero(roads.height == level)
        for begin in range(0, len(at), 4096):  # in blocks: all flows times all tops at once take gigabytes
            block = at[begin : begin + 4096]
            open_to = usable[roads.flows.near[block]] & usable[roads.flows.far[block]]
            top[block] = np.where(open_to, rng.random(open_to.shape), -1.0).argmax(axis=1)
    return top
