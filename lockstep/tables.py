"""Which tables there are: the record of each, what makes a row unique, and its columns as data.

>>> column = columns_of(TABLE_BY_NAME["transfers"])["wire_ns"]
>>> column.kind, column.nullable
('duration', True)
"""

from dataclasses import MISSING, dataclass, fields, replace
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
    PluginHealth,
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
    kind: str  # u8 u16 u32 u64 i32 i64 f64 bool str timestamp duration texts counters choice
    nullable: bool
    meaning: str
    choices: tuple[str, ...] = ()  # of kind choice: the only values allowed
    may_lack: bool = False  # an older release does not have it: null, or none where it may not be null


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
    Table("plugins", PluginHealth, "ts_ns", ("job", "attempt", "host", "pid", "ts_ns")),
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
    added = {each.name for each in fields(table.record) if each.default_factory is not MISSING}
    columns = {name: _column(name, hint) for name, hint in hints.items()}
    return {name: replace(each, may_lack=each.nullable or name in added) for name, each in columns.items()}


def _column(name: str, hint: Any) -> Column:  # Any: a type expression has no static type
    inner, *notes = get_args(hint)
    if get_origin(inner) is Literal:
        return Column(name, "choice", False, notes[-1], get_args(inner))
    if len(notes) == 2:  # Annotated[Annotated[int, "u64"], "meaning"] is flattened by typing
        return Column(name, notes[0], False, notes[1])
    present = next(arm for arm in get_args(inner) if arm is not NoneType)
    required = _column(name, Annotated[present, notes[-1]])
    return Column(name, required.kind, True, required.meaning, required.choices)


WORDS: dict[str, str] = {
    "rank": "One process of a job and the GPU it drives, by its number inside a communicator or in the whole job.",
    "host": "A machine with GPUs and NICs; its name is the one that the topology uses.",
    "NIC": "A network port of a host; it takes one cable, and its name means something on its host only.",
    "link": "A cable between two nodes of the topology; direction tx goes from its end a to its end b.",
    "rail": "The NICs of the same position on all hosts, and the leaves that they are cabled to.",
    "collective": "An operation of all ranks of a communicator; Send and Recv, of two, are kept in the same table.",
    "transfer": "What one operation moves on one channel to or from one peer, as one side of it sees it.",
    "step": "A training step of a rank; inside a transfer, a network step is one buffer that goes over the wire.",
    "window": "A stretch of time that is judged as a whole, once all hosts have reported it or were given up.",
    "verdict": "What the analyzer says: one faulty part, how sure it is, why, and why no other part.",
    "incident": "A fault over its lifetime: opened by a verdict, updated while it lasts, closed with a reason.",
    "decision": "What the planner says to an incident: one action, its cost, and the cost of every alternative.",
    "order": "What a person wants to become of a decision: approve, reject or undo; lines are only ever added.",
    "execution": "A decision being carried out: its steps, each written down before it is asked for.",
    "mark": "The id of a decision, left at the job controller, so that an act asked for twice is done once.",
    "replica": "Ranks that hold the whole state of a model, and train it with others like them.",
    "generation": "The replicas of a job that work together; each loss or return makes the next one.",
    "plan": "Where traffic or work goes from now on: a path for each flow, or a layout for a job.",
    "capture": "The portable case file: any subset of these tables with a description and, if known, a topology.",
    "scenario": "A simulated cluster, a job, what breaks in it when, and which verdict is right.",
    "watermark": "A moment or a number up to which nothing is missing any more.",
    "segment": "An immutable piece of the gateway's log that goes into the store whole, and once.",
    "claim": "What a gateway says of a batch before it stores it, so that no other one does.",
    "detail request": "What the server asks a collector to do, such as more detail on a rank; each expires.",
}

# Words of ours that were replaced by the field's; tests/repo refuses them as parts of names.
REPLACED: dict[str, str] = {
    "climb": "up_path",
    "courier": "notifier",
    "departures": "disconnects",
    "door": "fast_path",
    "happenings": "events",
    "hear": "receive",
    "heard": "last_seen, received",
    "homeless": "unknown_comm",
    "lanes": "workers, directed_links",
    "lateness": "straggler",
    "llr": "log_odds",
    "look": "poll, reading, evaluation",
    "matter": "alert",
    "moment": "timestamp",
    "mute": "silent",
    "news": "notification, changes",
    "outbox": "queue",
    "parcel": "batch",
    "piles": "arenas",
    "places": "indices, positions, paths",
    "rental": "break_even",
    "road": "path",
    "shelf": "cache",
    "situation": "context",
    "standing": "level, position, open",
    "story": "scenario",
    "surroundings": "constraints",
    "telling": "report, message",
    "turn": "order, round, slot",
    "unheard": "missing",
    "ways": "paths, directions, options",
    "whereabouts": "location",
    "wires": "pairs, encodings",
    "wish": "detail_request",
}

_INTRODUCTION = """\
# Words and records

One thing has one word, in the code, in the tables and in what we say. Times are integer nanoseconds since the UNIX
epoch, of the clock of `host`; a `timestamp` is such a time, a `duration` a length of time, and neither is ever
negative. What may be null is unknown when it is null; unknown is never written as zero. This page is generated:
records and columns are changed in `lockstep/records.py`, words in `lockstep/tables.py`.
"""
# By how a column's name ends; the first that fits counts.
_UNITS = {"_ns": "ns", "bytes": "bytes", "_mbps": "Mb/s", "_mhz": "MHz", "temp_c": "°C", "power_w": "W"}


def render_dictionary() -> str:
    """Return the whole page."""
    words = "".join(f"- **{word}**: {meaning}\n" for word, meaning in WORDS.items())
    replaced = "".join(f"| {old} | {new} |\n" for old, new in REPLACED.items())
    words += f"\nWords that are not used any more:\n\n| not | but |\n|---|---|\n{replaced}"
    return "\n".join([_INTRODUCTION, f"## Words\n\n{words}", "## Tables\n", *map(_render_table, TABLES)])


def _render_table(table: Table) -> str:
    key = ", ".join(f"`{column}`" for column in table.key)
    facts = f"Key: {key}." if key else "No key: equal rows may repeat."
    facts += f" Time: `{table.time}`." if table.time else " Rows carry no time."
    rows = "".join(_render_column(column, column.name in table.key) for column in columns_of(table).values())
    head = "| column | type | unit | null | key | meaning |\n|---|---|---|---|---|---|\n"
    return f"### {table.name}\n\n{table.record.__doc__} {facts}\n\n{head}{rows}"


def _render_column(column: Column, is_key: bool) -> str:
    kind = ", ".join(f"`{choice}`" for choice in column.choices) or column.kind
    unit = next((unit for ending, unit in _UNITS.items() if column.name.endswith(ending)), "")
    cells = [
        f"`{column.name}`",
        kind,
        unit,
        "yes" if column.nullable else "",
        "yes" if is_key else "",
        column.meaning,
    ]
    return f"| {' | '.join(cells)} |\n"
