"""lockstep token: who may send telemetry for which host, and who may read."""

from typing import Annotated, Literal

import typer
from rich.table import Table as Picture

from cli.setup import err, make_state_dir, out, settings_of, who_asks
from lockstep.clock import SystemClock, rfc3339
from lockstep.control.database import open_control
from lockstep.control.tokens import create_token, list_tokens, revoke_token

app = typer.Typer(no_args_is_help=True, help="Tokens for collectors and readers.")

Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for; shown in lists.")],
    scope: Annotated[Literal["ingest", "read", "act", "admin"], typer.Option(help="What it allows.")] = "read",
    host: Annotated[str | None, typer.Option(help="With scope ingest: the one host it may report for.")] = None,
) -> None:
    """Make a token and print it, once."""
    settings = settings_of(context)
    make_state_dir(settings)
    with open_control(settings.control_url) as control:
        now_ns = SystemClock().now_ns()
        secret = create_token(control, scope=scope, host=host, name=name, now_ns=now_ns, who=who_asks())
    err.print("this is shown once; keep it in a file that only its user can read")
    out.print(secret)


@app.command("list")
def show(context: typer.Context, as_json: Json = False) -> None:
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


@app.command("revoke")
def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(help="Id of the token, from `lockstep token list`.")],
    why: Annotated[str, typer.Option(help="Reason, kept in the audit.")] = "",
) -> None:
    """Make a token useless from now on."""
    with open_control(settings_of(context).control_url) as control:
        revoke_token(control, token_id, SystemClock().now_ns(), who=who_asks(), why=why)
    err.print(f"token {token_id} is revoked")
