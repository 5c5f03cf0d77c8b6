"""How a service's process asks for memory; told before anything else is imported, while it can still be chosen.

The C library makes a pile for each of many threads, and once it has seen a large block freed it takes the next such
blocks from a pile too; what little is still in use then keeps a pile whole. A head node had 187 MB in ten piles, 69
of them in use. Arrow's own allocator keeps what each thread once had at most (80 MB for 2 MB of rows in an hour).
The embedded engine's keeps what was freed for 5 s, in which a head node frees 70 to 110 MB.
"""

import ctypes
import os

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # of glibc's malloc.h
_MOST_ARENAS = 4
_LARGE_BYTES = 128 << 10  # goes straight back to the system when it is freed; saying so stops glibc from raising it
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_MALLOC_CONF": "dirty_decay_ms:500"}


def share_memory() -> None:
    """Have all threads and Arrow use few piles of the C library, none for what is large; the engine keeps little.

    What an operator has set in the environment stays.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    call_libc("mallopt", _ARENA_MAX, min(os.cpu_count() or 1, _MOST_ARENAS))
    call_libc("mallopt", _MMAP_THRESHOLD, _LARGE_BYTES)


def call_libc(name: str, *arguments: int) -> None:
    """Call what glibc has and other C libraries may not."""
    if function := getattr(ctypes.CDLL(None), name, None):
        function(*arguments)
