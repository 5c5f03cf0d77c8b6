"""Every record is a table, every field has a meaning and a kind, and keys and times name fields that exist."""

import re
from dataclasses import fields

import pytest

import lockstep.records
from lockstep.records import HostRecord, JobRecord
from lockstep.tables import TABLE_BY_NAME, TABLES, Column, Table, columns_of

KINDS = {
    "u8",
    "u16",
    "u32",
    "u64",
    "i32",
    "i64",
    "f64",
    "bool",
    "str",
    "moment",
    "span",
    "texts",
    "counters",
    "choice",
}

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def column(table: str, name: str) -> Column:
    return columns_of(TABLE_BY_NAME[table])[name]


def test_every_record_is_the_record_of_one_table() -> None:
    given = {
        kind for kind in vars(lockstep.records).values() if isinstance(kind, type) and issubclass(kind, HostRecord)
    }
    assert {table.record for table in TABLES} == given - {HostRecord, JobRecord}
    assert len(TABLE_BY_NAME) == len(TABLES) == len({table.record for table in TABLES})


@every_table
def test_columns_are_the_fields_of_the_record_in_order(table: Table) -> None:
    assert list(columns_of(table)) == [field.name for field in fields(table.record)]


@every_table
def test_every_field_has_a_kind_and_a_meaning_of_its_own(table: Table) -> None:
    for name, found in columns_of(table).items():
        assert found.name == name
        assert found.kind in KINDS
        assert re.fullmatch(r"\S.{3,}\S", found.meaning), f"{name}: {found.meaning!r}"
        assert found.meaning not in KINDS, f"{name} has its kind for a meaning"
        assert bool(found.choices) == (found.kind == "choice")


@every_table
def test_every_record_says_what_one_row_is(table: Table) -> None:
    assert re.fullmatch(r"[A-Z].+\.", table.record.__doc__ or "")


@every_table
def test_key_and_time_are_columns(table: Table) -> None:
    assert len(set(table.key)) == len(table.key)
    assert set(table.key) <= columns_of(table).keys()
    assert {name for name in table.key if columns_of(table)[name].nullable} <= {"transport", "nic"}
    assert table.time is None or columns_of(table)[table.time].kind == "moment"


@every_table
def test_rows_begin_with_who_made_them(table: Table) -> None:
    begin = ["host", "job", "attempt"] if table.has_job else ["host"]
    assert list(columns_of(table))[: len(begin)] == begin
    assert ("job" in columns_of(table)) == table.has_job


@every_table
def test_unit_in_a_name_and_kind_agree(table: Table) -> None:
    for name, found in columns_of(table).items():
        assert name.endswith("_ns") == (found.kind in ("moment", "span") or name in ("offset_ns", "transit_ns")), name


def test_plain_field_has_its_kind() -> None:
    assert column("collectives", "seq") == Column(
        "seq", "u64", False, "number of the operation, counted per communicator and function (Send, Recv: and peer)"
    )


def test_field_that_may_be_none_is_nullable() -> None:
    assert column("transfers", "wire_ns").kind == "span"
    assert column("transfers", "wire_ns").nullable
    assert not column("step_samples", "wire_ns").nullable


def test_small_set_becomes_choices_also_when_it_may_be_none() -> None:
    assert column("transfers", "direction").choices == ("send", "recv")
    assert not column("transfers", "direction").nullable
    assert column("transfers", "transport").choices[:2] == ("ib", "socket")
    assert column("transfers", "transport").nullable


def test_lists_and_maps_have_kinds_of_their_own() -> None:
    assert column("probes", "hops").kind == "texts"
    assert column("nic_counters", "extra").kind == "counters"
