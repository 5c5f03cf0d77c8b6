"""What keeps the collector's process small: no pandas, and one place for memory that was freed."""

import ctypes
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGE = 32 << 20  # larger than any array of a reading


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
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE), (_ARENA_MAX, 1)):
            mallopt(option, value)
