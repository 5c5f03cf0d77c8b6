"""How much memory something takes that must not take much."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def taking_less_than(most_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()
