"""Which tables there are: the record of each, what makes a row unique, and its columns as data.

>>> column = columns_of(TABLE_BY_NAME["transfers"])["wire_ns"]
>>> column.kind, column.nullable
('span', True)
"""

from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from lockstep.records import (
    Agent,
    ClockQuality,
    Collective,
    Comm,
    Connection,
    Event,
    FabricCounter,
    GpuHealth,
    HostRecord,
    JobRecord,
    NicCounter,
    OpStat,
    Path,
    Probe,
    Progress,
    Step,
    StepSample,
    Transfer,
    TransferStat,
    Transit,
)


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a record as storage sees it."""

    name: str
    kind: str  # u8 u16 u32 u64 i32 i64 f64 bool str moment span texts counters choice
    nullable: bool
    meaning: str
    choices: tuple[str, ...] = ()  # of kind choice: the only values allowed


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of row: its name, its fields, what makes a row unique, and which field says when."""

    name: str
    record: type[HostRecord]
    time: str | None
    key: tuple[str, ...] = ()  # empty: equal rows may repeat

    @property
    def has_job(self) -> bool:
        return issubclass(self.record, JobRecord)


_OPERATION = ("job", "attempt", "comm", "func", "seq", "replay", "epoch", "rank")
_ENDPOINT = ("channel", "peer", "direction")
_SECOND = ("job", "attempt", "comm", "func", "size_class", "rank", "ts_ns")
_CARRIER = ("transport", "nic")  # a connection may change them, or they become known, within a second

TABLES: tuple[Table, ...] = (
    Table("comms", Comm, "init_ns", ("job", "attempt", "comm", "rank")),
    Table("connections", Connection, "seen_ns"),
    Table("collectives", Collective, "enqueue_ns", _OPERATION + ("peer",)),
    Table("op_stats", OpStat, "ts_ns", _SECOND),
    Table("transfers", Transfer, "first_ns", _OPERATION + _ENDPOINT),
    Table("transfer_stats", TransferStat, "ts_ns", _SECOND + _ENDPOINT + _CARRIER),
    Table("step_samples", StepSample, "posted_ns", _OPERATION + _ENDPOINT + ("step",)),
    Table("transits", Transit, None),
    Table("progress", Progress, "ts_ns", ("job", "attempt", "comm", "rank", "func", "peer", "ts_ns")),
    Table("steps", Step, "start_ns", ("job", "attempt", "world_rank", "step", "source")),
    Table("agents", Agent, "ts_ns", ("host", "ts_ns")),
    Table("clocks", ClockQuality, "ts_ns", ("host", "ts_ns", "source")),
    Table("nic_counters", NicCounter, "ts_ns", ("host", "nic", "ts_ns")),
    Table("fabric_counters", FabricCounter, "ts_ns", ("switch", "port", "ts_ns")),
    Table("gpu_health", GpuHealth, "ts_ns", ("host", "gpu", "ts_ns")),
    Table("events", Event, "ts_ns"),
    Table("probes", Probe, "ts_ns"),
    Table("paths", Path, "seen_ns"),
)
TABLE_BY_NAME = {table.name: table for table in TABLES}


@cache
def columns_of(table: Table) -> dict[str, Column]:
    """Return the columns of a table by name, in the order of the record's fields."""
    hints = get_type_hints(table.record, include_extras=True)
    return {name: _column(name, hint) for name, hint in hints.items()}


def _column(name: str, hint: Any) -> Column:  # Any: a type expression has no static type
    inner, *notes = get_args(hint)
    if get_origin(inner) is Literal:
        return Column(name, "choice", False, notes[-1], get_args(inner))
    if len(notes) == 2:  # Annotated[Annotated[int, "u64"], "meaning"] is flattened by typing
        return Column(name, notes[0], False, notes[1])
    present = next(arm for arm in get_args(inner) if arm is not NoneType)
    required = _column(name, Annotated[present, notes[-1]])
    return Column(name, required.kind, True, required.meaning, required.choices)
