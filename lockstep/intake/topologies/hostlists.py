"""Names of many hosts in one word, as Slurm writes them: n[001-016,020] and rack[1-2]node[01-04]-ib."""

import re
from collections.abc import Iterator
from itertools import product
from reprlib import repr as shorten

from lockstep.errors import BadInput

MOST_NAMES = 1 << 17  # more than any cluster has hosts; a typing error such as n[1-99999999] must not fill the memory

_PIECE = re.compile(r"\[([^][]*)\]|([^][,\s]+)|(,)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_hostlist(text: str) -> list[str]:
    """Return the names in their order, or raise BadInput with what is wrong.

    >>> expand_hostlist("n[08-10,20],login")
    ['n08', 'n09', 'n10', 'n20', 'login']
    """
    names: list[str] = []
    for word in _words(text):
        choices = [_numbers(inner) if inner is not None else [plain] for inner, plain in word]
        if _count(choices) + len(names) > MOST_NAMES:
            raise BadInput(f"{shorten(text)} stands for more than {MOST_NAMES:,} names")
        names += ["".join(parts) for parts in product(*choices)]
    return names


_Word = list[tuple[str | None, str]]  # what stands in brackets, else plain text


def _words(text: str) -> Iterator[_Word]:
    word: _Word = []
    place = 0
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            raise BadInput(f"{shorten(text)} is no list of names: see character {place + 1}")
        place = piece.end()
        if piece[3]:
            if word:
                yield word
            word = []
        else:
            word.append((piece[1], piece[2] or ""))
    if word:
        yield word


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


def _count(choices: list[list[str]]) -> int:
    total = 1
    for options in choices:
        total *= len(options)
    return total
