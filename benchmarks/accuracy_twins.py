"""Which parts of a fabric nobody can tell apart in a world, because the same connections cross them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lockstep.topology import nic_name, split_end
from lockstep.verdict import Side
from simulator.network import Network
from simulator.pairs import Ints

_DIRECTIONS: dict[Side | None, int] = {None: 0, "tx": 1, "rx": 2}


def find_twins(part: str, side: Side | None, network: Network, paths: Ints) -> tuple[str, ...]:
    """Return the other parts that exactly the same connections cross; `paths` has a row of links per connection."""
    groups = [(name, _crossing(links, paths)) for name, links in _links_by_part(network)]
    mine = [crossing for name, crossing in groups if name == part]
    if not mine:
        return ()
    crossing = mine[_DIRECTIONS[side] if len(mine) > 1 else 0]
    if not crossing.any():
        return ()
    same = [name for name, others in groups if name != part and np.array_equal(others, crossing)]
    return tuple(dict.fromkeys([*same, *_name_pair(network, paths, crossing)]))


def _crossing(links: list[int], paths: Ints) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_or.reduce(np.isin(paths, links), axis=1)
    return found


def _name_pair(network: Network, paths: Ints, crossing: NDArray[np.bool_]) -> list[str]:
    """Return both names of a pair of NICs, if all that cross go between these two and all between them cross."""
    ends = np.sort(paths[:, [0, -1]] // 2, axis=1)
    chosen = np.unique(ends[crossing], axis=0)
    if len(chosen) != 1 or (ends[~crossing] == chosen).all(axis=1).any():
        return []
    one, other = (network.links[link].a for link in chosen[0])
    return [f"link:{one}--{other}", f"link:{other}--{one}"]


def _links_by_part(network: Network) -> Iterator[tuple[str, list[int]]]:
    """Yield each part with its links of both directions, then out and in; a switch with all of them only."""
    hosts: dict[str, list[int]] = {}
    switches: dict[str, list[int]] = {}
    for number, link in enumerate(network.links):
        (a, port), (b, _) = split_end(link.a), split_end(link.b)
        names = [f"link:{link.a}--{link.b}", *([nic_name(a, port)] if port else [])]  # fabrics name the host first
        yield from ((name, links) for name in names for links in _directions([number]))
        (hosts if port else switches).setdefault(a, []).append(number)
        switches.setdefault(b, []).append(number)
    yield from ((f"host:{name}", links) for name, numbers in hosts.items() for links in _directions(numbers))
    yield from ((f"switch:{name}", _directions(numbers)[0]) for name, numbers in switches.items())


def _directions(links: list[int]) -> tuple[list[int], list[int], list[int]]:
    out, back = [2 * link for link in links], [2 * link + 1 for link in links]
    return [*out, *back], out, back
