"""How long each table keeps its rows: from the settings, applied to the store whenever they differ."""

import re
from collections.abc import Mapping

from lockstep.errors import BadInput
from lockstep.store.layout import Layout
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, columns_of

# Days. Raw rows explain an incident of this week, statistics and counters one of this quarter; roll-ups, events
# and inventories are small and answer "has this part done it before". 0 keeps rows for good.
DEFAULT_RETENTION_DAYS: dict[str, int] = {
    "collectives": 3,
    "transfers": 3,
    "step_samples": 3,
    "progress": 3,
    "op_stats": 30,
    "transfer_stats": 30,
    "agents": 30,
    "clocks": 30,
    "nic_counters": 90,
    "fabric_counters": 90,
    "gpu_health": 90,
    "probes": 30,
    "steps": 180,
    "events": 365,
    "comms": 365,
    "connections": 365,
    "paths": 365,
    "transits": 0,
    "operations": 30,
    "rank_minutes": 180,
    "wire_minutes": 180,
    "attempts": 365,
    "sightings": 365,
}
_NS_PER_S = 1_000_000_000
_NS_PER_DAY = 86_400 * _NS_PER_S
_ROLLUP_SECONDS = dict.fromkeys(("operations", "rank_minutes", "wire_minutes"), "minute * 60")
_ROLLUP_SECONDS |= dict.fromkeys(("attempts", "sightings"), f"intDiv(last_ns, {_NS_PER_S})")
_FAR_FUTURE_S = 4_000_000_000  # year 2096, below the end of ClickHouse's DateTime
_TTL_DAYS = re.compile(r"\bTTL\b.*toIntervalDay\((\d+)\)")


def apply_retention(store: Store, layout: Layout, days: Mapping[str, int]) -> list[str]:
    """Make every table keep its rows for the given days and return the tables that were changed."""
    unknown = sorted(set(days) - set(DEFAULT_RETENTION_DAYS))
    if unknown:
        raise BadInput(f"retention names tables that do not exist: {', '.join(unknown)}")
    wanted = DEFAULT_RETENTION_DAYS | dict(days)
    changed = [table for table, present in _present_days(store, layout).items() if present != wanted[table]]
    for table in changed:
        store.command(_alter(table, wanted[table], layout))
    return changed


def past_retention(newest_ns: int, now_ns: int, days: Mapping[str, int]) -> set[str]:
    """Return the tables that would not keep rows as old as that."""
    kept = DEFAULT_RETENTION_DAYS | dict(days)
    age_days = (now_ns - newest_ns) / _NS_PER_DAY
    return {table for table, limit in kept.items() if limit and age_days > limit}


def _present_days(store: Store, layout: Layout) -> dict[str, int]:
    rows = store.query_system(
        "SELECT name, engine_full FROM system.tables "
        "WHERE database = {local:String} AND name IN {names:Array(String)}",
        {"local": layout.local, "names": list(DEFAULT_RETENTION_DAYS)},
    )
    return {row["name"]: _days_in(row["engine_full"]) for row in rows.to_pylist()}


def _days_in(engine: str) -> int:
    match = _TTL_DAYS.search(engine)
    return int(match[1]) if match else 0


def _alter(table: str, days: int, layout: Layout) -> str:
    name = f"{layout.local}.{table}"
    if days == 0:
        return f"ALTER TABLE {name} REMOVE TTL"
    return f"ALTER TABLE {name} MODIFY TTL {_moment(table)} + INTERVAL {days} DAY DELETE"


def _moment(table: str) -> str:
    """Return when a row happened as a DateTime; rows that do not say so are kept."""
    if table in _ROLLUP_SECONDS:
        return f"toDateTime({_ROLLUP_SECONDS[table]}, 'UTC')"
    record = TABLE_BY_NAME[table]
    if record.time is None:
        raise BadInput(f"rows of {table} carry no time, so they cannot be kept for a number of days")
    seconds = f"intDiv({record.time}, {_NS_PER_S})"
    if columns_of(record)[record.time].nullable:
        seconds = f"ifNull({seconds}, {_FAR_FUTURE_S})"
    return f"toDateTime({seconds}, 'UTC')"
