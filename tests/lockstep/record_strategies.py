"""Records of any table for hypothesis: every value that the kinds allow, edges included."""

from typing import Any

from hypothesis import strategies as st

from lockstep.records import HostRecord
from lockstep.tables import Column, Table, columns_of

LARGEST = {
    "u8": 2**8 - 1,
    "u16": 2**16 - 1,
    "u32": 2**32 - 1,
    "u64": 2**64 - 1,
    "timestamp": 2**63 - 1,
    "duration": 2**63 - 1,
}
SMALLEST = {"i32": -(2**31), "i64": -(2**63)}

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
# Any: a kind's values have the type that the record gives them.
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(0, largest) for kind, largest in LARGEST.items()},
    **{kind: st.integers(smallest, -smallest - 1) for kind, smallest in SMALLEST.items()},
    "f64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "str": _TEXTS,
    "texts": st.lists(_TEXTS, max_size=3),
    "counters": st.dictionaries(_TEXTS, st.integers(0, 2**64 - 1), max_size=3),
}


def records_of(table: Table) -> st.SearchStrategy[HostRecord]:
    return st.builds(table.record, **{name: _values(column) for name, column in columns_of(table).items()})


def _values(column: Column) -> st.SearchStrategy[Any]:
    values = st.sampled_from(column.choices) if column.choices else _VALUES[column.kind]
    return st.none() | values if column.nullable else values
