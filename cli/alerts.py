"""lockstep alerts: receivers of alerts, and whether notifications arrive."""

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Picture

from cli.client import DEFAULT_SERVER, Server, Token, ask, send
from cli.setup import AsJson, Why, out
from lockstep.client.server import Server as Connection
from lockstep.clock import rfc3339

app = typer.Typer(no_args_is_help=True, help="Receivers of alerts, and whether notifications arrive.")

Json = dict[str, Any]
Name = Annotated[str, typer.Argument(help="Name of the receiver, from `lockstep alerts list`.")]


@app.command("list")
def list_of_targets(server: Server = DEFAULT_SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """List receivers and how they answer."""
    found = ask(server, token, "/api/v1/webhooks", {})
    if as_json:
        out.print_json(data=found)
        return
    picture = Picture("name", "kind", "to", "state", "last success", "said last", box=None)
    for item in found["items"]:
        health = item["health"] or {}
        success = health.get("last_success_ns")
        state = _state(item, health)
        reply = health.get("disabled_because") or health.get("last_reply", "")
        picture.add_row(item["name"], item["kind"], item["url"], state, rfc3339(success) if success else "", reply)
    out.print(picture)


@app.command("test")
def send_test(name: Name, server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Send a test message now and show what the receiver said; needs a token of scope admin."""
    reply = send(server, token, f"{_path(name)}/test", {})
    out.print(f"{name}: {'delivered' if reply['delivered'] else 'not delivered'}: {reply['said']}")
    if not reply["delivered"]:
        raise typer.Exit(1)


@app.command()
def enable(name: Name, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Send again to a receiver that was disabled; needs a token of scope admin."""
    _order(server, token, f"{_path(name)}/enable", why)
    out.print(f"{name} is enabled")


@app.command()
def deliveries(
    name: Name,
    state: Annotated[str, typer.Option(help="Only waiting, sending, delivered, failed or superseded ones.")] = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the newest messages to a receiver, with what became of them."""
    found = ask(server, token, f"{_path(name)}/deliveries", {"state": state} if state else {})
    if as_json:
        out.print_json(data=found)
        return
    picture = Picture("id", "made", "what", "state", "tries", "title", "said last", box=None)
    for item in found["items"]:
        reply = item["log"][-1]["said"] if item["log"] else ""
        made, tries = rfc3339(item["created_ns"]), str(item["tries"])
        picture.add_row(item["id"], made, item["kind"], item["state"], tries, item["title"], reply)
    out.print(picture)


@app.command()
def replay(
    name: Name,
    message: Annotated[str, typer.Argument(help="Id of the message, from `lockstep alerts deliveries`.")],
    why: Why = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Send a message once more under its old id; needs a token of scope admin."""
    _order(server, token, f"{_path(name)}/deliveries/{quote(message, safe='')}/replay", why)
    out.print(f"{message} is sent to {name} again")


def _order(server: str, token: str, path: str, why: str) -> None:
    with Connection(server, token) as connection, connection.answered("POST", path, {"why": why}) as answer:
        answer.read()


def _path(name: str) -> str:
    return f"/api/v1/webhooks/{quote(name, safe='')}"


def _state(item: Json, health: Json) -> str:
    if not item["enabled"]:
        return "off"
    if health.get("disabled_because"):
        return "disabled"
    failures = health.get("failures_in_row", 0)
    return f"fails ({failures})" if failures else "well" if health.get("last_success_ns") else "not used yet"
