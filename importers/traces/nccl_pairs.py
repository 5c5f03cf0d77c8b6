"""Which hosts are slow in nccl-tests that were run over pairs of hosts: each host is compared with all others.

A test of two hosts cannot tell which of them is slow. Where every host was tested with several others, a host that is
slow in nearly all of its pairs is to blame; a pair that is slow while its hosts are not is a wire between them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

_SLOW = (
    0.8  # of the median pair: pairs of healthy H100 nodes stay within 5 % of each other, and a lost rail costs half
)
_FEWEST_PAIRS = 3  # of a host: with two, one slow partner is half of what is known
_NEARLY_ALL = 0.75  # of a host's pairs

Pair = tuple[str, str]


@dataclass(frozen=True)
class Measured:
    """The bus bandwidth that a test of two hosts reached with one size."""

    test: str
    ranks: int
    size: int
    pair: Pair
    busbw_gbs: float


@dataclass(frozen=True)
class Slow:
    """A host, or a pair of hosts where neither is slow elsewhere, and what share of the usual it reaches."""

    hosts: tuple[str, ...]
    test: str
    size: int
    share: float
    pairs: int


def compare_pairs(results: Iterable[Measured]) -> tuple[list[Slow], int]:
    """Return who is slow, and how many results were compared: of each test the largest size that most pairs did."""
    tests: dict[tuple[str, int], dict[int, dict[Pair, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for each in results:
        first, last = sorted(each.pair)
        tests[each.test, each.ranks][each.size].setdefault((first, last), []).append(each.busbw_gbs)
    found: list[Slow] = []
    compared = 0
    for (test, _), sizes in sorted(tests.items()):
        size = max(sizes, key=lambda size: (len(sizes[size]), size))
        rates = {pair: median(rates) for pair, rates in sizes[size].items()}
        usual = median(rates.values())
        shares = {pair: rate / usual for pair, rate in rates.items()} if usual else {}
        if _is_comparable(shares):
            compared += len(shares)
            found += [Slow(hosts, test, size, share, pairs) for hosts, share, pairs in _find_slow(shares)]
    return found, compared


def _is_comparable(shares: Mapping[Pair, float]) -> bool:
    return any(len(mine) >= _FEWEST_PAIRS for mine in _by_host(shares).values())


def _by_host(shares: Mapping[Pair, float]) -> dict[str, list[float]]:
    by_host: dict[str, list[float]] = defaultdict(list)
    for pair, share in shares.items():
        for host in pair:
            by_host[host].append(share)
    return by_host


def _find_slow(shares: Mapping[Pair, float]) -> list[tuple[tuple[str, ...], float, int]]:
    """Return hosts, then pairs, with share and number of pairs; pairs of the slowest host accuse nobody else."""
    found: list[tuple[tuple[str, ...], float, int]] = []
    rest = dict(shares)
    while suspects := [
        (median(mine), host, len(mine))
        for host, mine in _by_host(rest).items()
        if len(mine) >= _FEWEST_PAIRS and sum(share < _SLOW for share in mine) >= _NEARLY_ALL * len(mine)
    ]:
        share, host, pairs = min(suspects)
        found.append(((host,), share, pairs))
        rest = {pair: share for pair, share in rest.items() if host not in pair}
    return found + [(pair, share, 1) for pair, share in sorted(rest.items()) if share < _SLOW]
