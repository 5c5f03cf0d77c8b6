"""lockstep store and token: schema, state, backup and restore of the telemetry store, and who may send and read."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Picture
from rich.text import Text

from cli.setup import AsJson, Why, err, out, settings_of, who_asks
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import read_capture
from lockstep.clock import SystemClock, rfc3339
from lockstep.config import make_state_dir
from lockstep.state.database import open_control
from lockstep.state.tokens import Scope, create_token, list_tokens, revoke_token
from lockstep.store.maintenance import Inventory, apply_retention, backup, past_retention, restore, take_inventory
from lockstep.store.migrations import check_migrated, migrate
from lockstep.store.opening import layout_of, node_urls, opened_store

app = typer.Typer(no_args_is_help=True, help="The telemetry store.")
tokens = typer.Typer(no_args_is_help=True, help="Tokens for collectors and readers.")


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
