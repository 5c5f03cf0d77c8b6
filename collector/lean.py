"""What an agent goes without, although it may be installed.

pyarrow imports pandas, where there is one, as soon as it is given a list: 40 MB that no source uses.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("this process goes without pandas", name=name)
        return None


def leave_out_pandas() -> None:
    """Have this process believe that there is no pandas; what was imported before stays."""
    sys.meta_path.insert(0, _NoPandas())
