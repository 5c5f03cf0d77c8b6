"""Every record is a table, every field has a meaning and a kind, and keys and times name fields that exist."""

import re
from dataclasses import fields

import lockstep.records
from lockstep.arrow import ARROW_TYPES
from lockstep.records import HostRecord, JobRecord
from lockstep.tables import TABLE_BY_NAME, TABLES, columns_of

KINDS = {*ARROW_TYPES, "choice"}


def test_every_record_is_the_record_of_one_table() -> None:
    given = {
        kind for kind in vars(lockstep.records).values() if isinstance(kind, type) and issubclass(kind, HostRecord)
    }
    assert {table.record for table in TABLES} == given - {HostRecord, JobRecord}
    assert len(TABLE_BY_NAME) == len(TABLES) == len({table.record for table in TABLES})


def test_every_field_has_a_kind_and_a_meaning_of_its_own() -> None:
    for table in TABLES:
        for name, found in columns_of(table).items():
            assert found.name == name
            assert found.kind in KINDS
            assert re.fullmatch(r"\S.{3,}\S", found.meaning), f"{name}: {found.meaning!r}"
            assert found.meaning not in KINDS, f"{name} has its kind for a meaning"
            assert bool(found.choices) == (found.kind == "choice")


def test_table_says_what_a_row_is_and_has_its_key_time_and_units_as_columns() -> None:
    for table in TABLES:
        columns = columns_of(table)
        assert re.fullmatch(r"[A-Z].+\.", table.record.__doc__ or "")
        assert list(columns) == [field.name for field in fields(table.record)]
        assert len(set(table.key)) == len(table.key)
        assert set(table.key) <= columns.keys()
        assert {name for name in table.key if columns[name].nullable} <= {"transport", "nic"}
        assert table.time is None or columns[table.time].kind == "timestamp"
        begin = ["host", "job", "attempt"] if table.has_job else ["host"]
        assert list(columns)[: len(begin)] == begin
        assert ("job" in columns) == table.has_job
        for name, found in columns.items():
            assert name.endswith("_ns") == (
                found.kind in ("timestamp", "duration") or name in ("offset_ns", "transit_ns")
            ), name
