"""Names of many hosts in one word, as Slurm writes them: n[001-016,020] and rack[1-2]node[01-04]-ib."""

import re
from collections.abc import Iterator
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
