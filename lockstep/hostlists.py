"""Names of hosts as others write them: many in one word, as Slurm does (n[001-016,020]), or without a domain."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from reprlib import repr as shorten

from lockstep.errors import BadInput

MOST_NAMES = 1 << 17  # more than any cluster has hosts; a typing error such as n[1-99999999] must not fill the memory

_WORD = re.compile(r"(?:[^][,\s]|\[[^][]*\])+")
_PIECE = re.compile(r"\[([^][]*)\]|([^][]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_hostlist(text: str) -> list[str]:
    """Return the names in their order, or raise BadInput with what is wrong.

    >>> expand_hostlist("n[08-10,20],login")
    ['n08', 'n09', 'n10', 'n20', 'login']
    """
    names: list[str] = []
    for word in _words(text):
        choices = [[plain] if plain else _numbers(inner) for inner, plain in _PIECE.findall(word)]
        if prod(map(len, choices)) + len(names) > MOST_NAMES:
            raise BadInput(f"{shorten(text)} stands for more than {MOST_NAMES:,} names")
        names += ["".join(parts) for parts in product(*choices)]
    return names


def match_hosts(names: Iterable[str], hosts: Iterable[str]) -> dict[str, str]:
    """Return which of the hosts each name means: itself, or the only one that differs by a domain on one side.

    Two names are never one host, and names with different domains are different hosts.

    >>> match_hosts(["h1", "h2.site.example", "h3"], ["h1", "h2", "h3.a.example", "h3.b.example"])
    {'h1': 'h1', 'h2.site.example': 'h2'}
    """
    wanted, known = set(names), set(hosts)
    by_label = defaultdict[str, list[str]](list)
    for host in known - wanted:
        by_label[host.partition(".")[0]].append(host)
    found = {name: name for name in wanted & known}
    for name in wanted - known:
        label, dot, _ = name.partition(".")
        candidates = [host for host in by_label[label] if not dot or "." not in host]
        if len(candidates) == 1:
            found[name] = candidates[0]
    times = Counter(found.values())
    return {name: host for name, host in sorted(found.items()) if name == host or times[host] == 1}


def _words(text: str) -> Iterator[str]:
    """Yield what commas separate, where they stand outside of brackets."""
    position = 0
    while text:
        word = _WORD.match(text, position)
        end = word.end() if word else position
        if word is None or text[end : end + 1] not in ("", ","):
            raise BadInput(f"{shorten(text)} is no list of names: see character {end + 1}")
        yield word[0]
        if end == len(text):
            return
        position = end + 1


def _numbers(inner: str) -> list[str]:
    found: list[str] = []
    for part in inner.split(","):
        bounds = _RANGE.fullmatch(part.strip())
        if bounds is None:
            raise BadInput(f"[{shorten(inner)[1:-1]}] is no list of numbers")
        first, last = bounds[1], bounds[2] or bounds[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST_NAMES:
            raise BadInput(f"{part.strip()} is no range of at most {MOST_NAMES:,} numbers that goes up")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        if len(found) > MOST_NAMES:
            raise BadInput(f"[{shorten(inner)[1:-1]}] stands for more than {MOST_NAMES:,} numbers")
    return found
