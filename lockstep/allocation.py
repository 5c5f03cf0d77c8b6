"""How a service's process asks for memory; told before anything else is imported, while it can still be chosen.

The C library makes a pile for each of many threads, and once it has seen a large block freed it takes the next such
blocks from a pile too; what little is still in use then keeps a pile whole. A head node had 187 MB in ten piles, 69
of them in use. Arrow's own allocator keeps what each thread once had at most (80 MB for 2 MB of rows in an hour).
The embedded engine's keeps what was freed for 5 s, in which a head node frees 70 to 110 MB.

A collector, which reads the same again and again, keeps what was freed in one place, and goes without pandas.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of glibc's malloc.h
_MOST_ARENAS = 4
_LARGE_BYTES = 128 << 10  # goes straight back to the system when it is freed; saying so stops glibc from raising it
_KEPT_BYTES = 32 << 20  # larger than any array of a collector's reading
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


# None in sys.modules would not do: what Cython compiles, as Arrow is, imports it as if it were a module.
class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("this process goes without pandas", name=name)
        return None


def leave_out_pandas() -> None:
    """Have this process believe that there is no pandas; what was imported before stays."""
    sys.meta_path.insert(0, _NoPandas())


def keep_freed_memory() -> None:
    """Have the C library keep freed memory, in one place for all threads; one that cannot is left as it is."""
    for option, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, 1)):
        call_libc("mallopt", option, value)
