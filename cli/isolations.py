"""lockstep isolations: nodes that are out of service, and a person's word on their way back."""

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Picture

from cli.client import DEFAULT_SERVER, Server, Token, ask, tell
from cli.setup import out
from lockstep.clock import rfc3339

app = typer.Typer(no_args_is_help=True, help="Nodes that are out of service, and their way back.")

Json = dict[str, Any]
Node = Annotated[str, typer.Argument(help="A node that is out of service.")]
Why = Annotated[str, typer.Option(help="Reason, kept in the audit.")]


@app.command("list")
def list_of_isolations(
    every: Annotated[bool, typer.Option("--all", help="Also those that are back in service.")] = False,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """List the nodes that are out of service, the oldest first."""
    found = ask(server, token, "/api/v1/isolated", {})["items"]
    shown = [item for item in found if every or item["state"] != "returned"]
    if as_json:
        out.print_json(data={"items": shown})
        return
    picture = Picture("node", "state", "part", "since", "next", "failed tests", "last word", box=None)
    for item in shown:
        picture.add_row(*_columns(item))
    out.print(picture)


@app.command("test")
def try_out(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Test a node now; it returns to service when it passes. Needs a token of scope act."""
    _order(node, "test", {"why": why}, server, token)


@app.command("return")
def give_back(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Return a node to service on your word, without a test. Needs a token of scope act."""
    _order(node, "return", {"why": why}, server, token)


@app.command()
def rma(
    node: Node,
    uuid: Annotated[str, typer.Option(help="Of the part; that of a GPU is known from telemetry.")] = "",
    serial: Annotated[str, typer.Option(help="Of the part.")] = "",
    ticket: Annotated[str, typer.Option(help="Number of the case.")] = "",
    why: Why = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say that the part was sent back: the node stays out, and no test returns it. Needs a token of scope act."""
    told = {"uuid": uuid, "serial": serial, "ticket": ticket}
    part = {name: value for name, value in told.items() if value}
    _order(node, "rma", {"why": why, "part": part}, server, token)


@app.command()
def repaired(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Say that a new part is in: the node is tested, and its history starts anew. Needs a token of scope act."""
    _order(node, "repaired", {"why": why}, server, token)


def _order(node: str, kind: str, told: Json, server: str, token: str) -> None:
    tell(server, token, "POST", f"/api/v1/isolated/{quote(node, safe='')}/{kind}", told)
    out.print(f"{kind} {node}: written down; the planner follows within seconds")


def _columns(item: Json) -> tuple[str, ...]:
    sent = " ".join(f"{name} {value}" for name, value in (item["part"] or {}).items() if value)
    return (
        item["node"],
        item["state"],
        f"{item['component']} {sent}".strip(),
        rfc3339(item["since_ns"]),
        rfc3339(item["until_ns"]) if item["until_ns"] else "",
        str(item["tests"]),
        item["said"] or item["reason"],
    )
