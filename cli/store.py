"""lockstep store and token: schema, state, backup and restore of the telemetry store, and who may send and read."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table as Picture
from rich.text import Text

from cli.setup import AsJson, Why, err, out, settings_of, who_asks
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import read_capture
from lockstep.clock import SystemClock, rfc3339
from lockstep.config import make_state_dir
from lockstep.state.database import open_control
from lockstep.state.documents import verify_audit
from lockstep.state.tokens import Scope, create_token, list_tokens, revoke_token
from lockstep.store.maintenance import (
    DEFAULT_RETENTION_DAYS,
    Inventory,
    apply_retention,
    backup,
    layout_of,
    node_urls,
    opened_store,
    past_retention,
    restore,
    take_inventory,
)
from lockstep.store.migrations import check_migrated, migrate

app = typer.Typer(no_args_is_help=True, help="The telemetry store.")
audit = typer.Typer(no_args_is_help=True, help="The audit: who did what.")
tokens = typer.Typer(no_args_is_help=True, help="Tokens for collectors and readers.")


class Measured(NamedTuple):
    """What one host adds to a table; rows as they are stored, bytes after merges."""

    rows_per_s: float
    bytes_per_row: float


# Rows of benchmarks/fleet_rows.py: 80 hosts (72 of dense jobs, 8 of one with EP64) for 60 s, engine 26.9, merged.
# Together 12.0 bytes a row that was sent; `bench fleet` has 12.3 (benchmarks/results.md, "A fleet against one head
# node"). Tables that are not here take next to nothing; where `LOCKSTEP_SAMPLE` asks for more, transfers take more.
PER_HOST: dict[str, Measured] = {
    "agents": Measured(1.0, 13.2),
    "collectives": Measured(23.0, 12.9),
    "gpu_health": Measured(8.0, 9.5),
    "nic_counters": Measured(8.0, 33.8),
    "op_stats": Measured(56.0, 12.1),
    "operations": Measured(9.9, 21.1),
    "progress": Measured(86.4, 13.4),
    "rank_minutes": Measured(1.9, 17.0),
    "transfer_stats": Measured(355.2, 10.0),
    "transfers": Measured(32.0, 16.6),
    "wire_minutes": Measured(5.8, 7.5),
}
# `bench fleet`, 512 agents: the store took 1.08 cores for 277,408 rows/s, merges included (benchmarks/results.md).
_ROWS_PER_CORE_S = 256_000
_SHARE_FOR_INSERTS = 0.5  # of the cores; the analyzer and people read with the rest
_FULL = 0.7  # of a disk: merges need room, and self-watch complains at 0.9
_S_PER_DAY = 86_400


@dataclass(frozen=True)
class Machine:
    """What one node of the store has, and how many nodes hold the same rows."""

    disk_tb: float = 8.0
    cores: int = 16
    replicas: int = 2


@dataclass(frozen=True)
class TablePlan:
    """One table of the whole fleet."""

    table: str
    kept_days: int
    rows_per_s: float
    rows: float
    bytes: float


@dataclass(frozen=True)
class StorePlan:
    """The store of a fleet after so many days; bytes are those of one replica."""

    hosts: int
    days: int
    tables: tuple[TablePlan, ...]
    shards: int
    nodes: int
    disk_tb: float  # of each node, that is in use

    @property
    def rows_per_s(self) -> float:
        return sum(table.rows_per_s for table in self.tables)

    @property
    def rows(self) -> float:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> float:
        return sum(table.bytes for table in self.tables)


@app.command("migrate")
def migrate_command(context: typer.Context) -> None:
    """Bring the store, on all its nodes, to this version's schema and the settings' retention."""
    settings, now_ns = settings_of(context), SystemClock().now_ns()
    layout = layout_of(settings)
    for url in node_urls(settings):
        with opened_store(settings, url) as store:
            done = migrate(store, layout, now_ns)
            changed = apply_retention(store, layout, settings.store.retention_days)
            names = ", ".join(f"{m.number:04}_{m.name}" for m in done) or "nothing to do"
            err.print(f"{store.address}: {names}; retention set on {len(changed)} tables")


@app.command("status")
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Say what the store holds and whether its schema fits this version."""
    settings = settings_of(context)
    inventories = []
    for url in node_urls(settings):
        with opened_store(settings, url) as store:
            inventories.append(take_inventory(store, layout_of(settings)))
    if as_json:
        out.print_json(data=[asdict(inventory) for inventory in inventories])
        return
    for inventory in inventories:
        _print(inventory)


@app.command("plan")
def plan_command(
    context: typer.Context,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of eight GPUs.")],
    days: Annotated[int, typer.Option(min=1, help="Days from now; tables keep their rows as the settings say.")] = 30,
    disk_tb: Annotated[float, typer.Option(min=0.1, help="Disk of a node.")] = Machine.disk_tb,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = Machine.cores,
    replicas: Annotated[int, typer.Option(min=1, help="Nodes that hold the same rows.")] = Machine.replicas,
    as_json: AsJson = False,
) -> None:
    """Say how many rows, disks and shards a fleet needs, by what was measured of a busy host."""
    kept = settings_of(context).store.retention_days
    plan = plan_store(hosts, days, kept, Machine(disk_tb, cores, replicas))
    if as_json:
        out.print_json(data=asdict(plan))
        return
    picture = Picture("table", "kept days", "rows/s", "million rows", "GB", box=None)
    for each in plan.tables:
        sizes = (f"{each.rows_per_s:,.0f}", f"{each.rows / 1e6:,.0f}", f"{each.bytes / 1e9:,.0f}")
        picture.add_row(each.table, str(each.kept_days), *sizes)
    out.print(picture)
    out.print(
        f"{hosts:,} hosts after {days} days: {plan.rows_per_s:,.0f} rows/s, {plan.rows / 1e9:,.1f} billion rows, "
        f"{plan.bytes / 1e12:,.1f} TB"
    )
    each_node = f"{cores} cores and {disk_tb:g} TB, {plan.disk_tb:,.1f} of them in use"
    out.print(f"{plan.shards} shards of {replicas} replicas: {plan.nodes} nodes, each with {each_node}")


@app.command("backup")
def backup_command(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of the backup; the time of day by default.")] = None,
) -> None:
    """Write a backup into the store's own backup directory."""
    settings = settings_of(context)
    name = name or rfc3339(SystemClock().now_ns()).replace(":", "")
    for url in node_urls(settings):
        with opened_store(settings, url) as store:
            backup(store, layout_of(settings), name)
            err.print(f"{store.address}: wrote backup {name}")


@app.command("restore")
def restore_command(context: typer.Context, name: Annotated[str, typer.Argument(help="Name of the backup.")]) -> None:
    """Fill an empty store from a backup; a store that holds anything is left as it is."""
    settings = settings_of(context)
    for url in node_urls(settings):
        with opened_store(settings, url) as store:
            restore(store, layout_of(settings), name)
            err.print(f"{store.address}: restored backup {name}")


@app.command("load")
def load(
    context: typer.Context, capture: Annotated[Path, typer.Argument(help="Capture: a directory, or a .tar.zst.")]
) -> None:
    """Put a capture's rows into the store; the same again within an hour (4,000 inserts) changes nothing."""
    settings = settings_of(context)
    checked = read_capture(capture)
    with opened_store(settings) as store:
        check_migrated(store, layout_of(settings))
        err.print(f"loaded {load_capture(store, checked)} rows")
    gone = past_retention(checked.info.end_ns, SystemClock().now_ns(), settings.store.retention_days)
    if soon := [name for name in checked.tables if name in gone]:
        err.print(f"the store will soon delete those of {', '.join(soon)}: they are older than its retention")


def _print(inventory: Inventory) -> None:
    out.print(f"{inventory.address}  ClickHouse {inventory.engine_version}")
    for past in inventory.applied:
        out.print(f"  {past.number:04}_{past.name}  applied {rfc3339(past.applied_ns)} by Lockstep {past.release}")
    for name in inventory.pending:
        out.print(f"  {name} ", Text("not applied", style="bold red"))
    picture = Picture("table", "rows", "bytes", "parts", box=None)
    for size in inventory.tables:
        picture.add_row(size.table, f"{size.rows:,}", f"{size.bytes_on_disk:,}", str(size.parts))
    out.print(picture)


@tokens.command("create")
def create_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for; shown in lists.")],
    scope: Annotated[Scope, typer.Option(help="What it allows.")] = "read",
    host: Annotated[
        str | None, typer.Option(help="With scope ingest or fabric: the one host it may report for.")
    ] = None,
) -> None:
    """Make a token and print it, once."""
    settings = settings_of(context)
    make_state_dir(settings)
    with open_control(settings.control_url) as control:
        now_ns = SystemClock().now_ns()
        secret = create_token(control, scope=scope, host=host, name=name, now_ns=now_ns, who=who_asks())
    err.print("this is shown once; keep it in a file that only its user can read")
    out.print(secret)


@tokens.command("list")
def list_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List tokens without their secrets."""
    with open_control(settings_of(context).control_url) as control:
        tokens = list_tokens(control)
    if as_json:
        out.print_json(data=[token.model_dump() for token in tokens])
        return
    picture = Picture("id", "name", "scope", "host", "made", "revoked", box=None)
    for token in tokens:
        revoked = rfc3339(token.revoked_ns) if token.revoked_ns else ""
        picture.add_row(token.id, token.name, token.scope, token.host or "", rfc3339(token.created_ns), revoked)
    out.print(picture)


@tokens.command("revoke")
def revoke_command(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(help="Id of the token, from `lockstep token list`.")],
    why: Why = "",
) -> None:
    """Make a token useless from now on."""
    with open_control(settings_of(context).control_url) as control:
        revoke_token(control, token_id, SystemClock().now_ns(), who=who_asks(), why=why)
    err.print(f"token {token_id} is revoked")


@audit.callback()
def name_audit() -> None:
    """Keep `verify` a command of its own: alone it would be the whole."""


@audit.command("verify")
def verify_command(context: typer.Context) -> None:
    """Say whether all lines of the audit are as they were written; 1 and the first that is not."""
    with open_control(settings_of(context).control_url) as control:
        lines, digest = verify_audit(control)
    out.print(f"{lines:,} lines are as they were written; the newest digest is {digest or 'none'}")


def plan_store(hosts: int, days: int, retention_days: Mapping[str, int], machine: Machine) -> StorePlan:
    """Return what a fleet fills in so many days, when tables keep their rows as long as the settings say.

    >>> plan = plan_store(1250, 30, {}, Machine())
    >>> plan.shards, plan.nodes, round(plan.bytes / 1e12, 1)
    (3, 6, 16.4)
    """
    kept = DEFAULT_RETENTION_DAYS | dict(retention_days)
    tables = tuple(
        _plan_table(name, hosts, min(kept[name] or days, days), measured) for name, measured in PER_HOST.items()
    )
    size = sum(table.bytes for table in tables)
    by_disk = size / (machine.disk_tb * 1e12 * _FULL)
    rows_per_s = sum(table.rows_per_s for table in tables)
    by_cores = rows_per_s / (machine.cores * _SHARE_FOR_INSERTS * _ROWS_PER_CORE_S)
    shards = max(1, math.ceil(max(by_disk, by_cores)))
    return StorePlan(hosts, days, tables, shards, shards * machine.replicas, size / shards / 1e12)


def _plan_table(name: str, hosts: int, kept_days: int, measured: Measured) -> TablePlan:
    rows_per_s = hosts * measured.rows_per_s
    rows = rows_per_s * kept_days * _S_PER_DAY
    return TablePlan(name, kept_days, rows_per_s, rows, rows * measured.bytes_per_row)
