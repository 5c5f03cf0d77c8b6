"""lockstep decisions, isolations and alerts: what is proposed, nodes out of service, and who is told of it."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Picture

from cli.client import DEFAULT_SERVER, Server, Token, ask, offer_decisions, send
from cli.setup import AsJson, Why, out
from lockstep.client import Client
from lockstep.client.client import DecisionFile
from lockstep.client.server import Server as Connection
from lockstep.clock import rfc3339
from lockstep.decision import Decision, Option
from lockstep.execution import OrderKind
from lockstep.words import automation, by_hand, lasting, recommendation

app = typer.Typer(no_args_is_help=True, help="What is proposed, done and undone, and what it was worth.")
isolations = typer.Typer(no_args_is_help=True, help="Nodes that are out of service, and their way back.")
alerts = typer.Typer(no_args_is_help=True, help="Receivers of alerts, and whether notifications arrive.")

Id = Annotated[str, typer.Argument(help="Id of the decision.", autocompletion=offer_decisions)]
Node = Annotated[str, typer.Argument(help="A node that is out of service.")]
Name = Annotated[str, typer.Argument(help="Name of the receiver, from `lockstep alerts list`.")]
Json = dict[str, Any]
_NEWEST = 100  # decisions that are listed


@app.command("list")
def list_of_decisions(
    job: Annotated[str, typer.Option(help="Only those of one job.")] = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the newest decisions."""
    with Client(server, token) as lockstep:
        found = list(islice(lockstep.decisions(job=job or None), _NEWEST))
    if as_json:
        out.print_json(data={"items": [one.as_json() for one in found]})
        return
    picture = Picture("id", "job", "action", "mode", "carried out", "made", "reason", box=None)
    for one in found:
        done = one.execution or ("held" if one.held_because else "")
        picture.add_row(one.id, one.job, one.action, one.mode, done, rfc3339(one.created_ns), one.reason)
    out.print(picture)


@app.command("show")
def show(decision: Id, server: Server = DEFAULT_SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Show one decision: its cost, every alternative, and each step that was done."""
    with Client(server, token) as lockstep:
        found = lockstep.decision(decision)
    if as_json:
        out.print_json(data=found.as_json())
        return
    out.print(recommendation(found))
    out.print(f"{found.action} for {found.job}, severity {found.severity}, mode {found.mode}")
    out.print(found.reason)
    for label, text in _list_remarks(found):
        out.print(f"{label}: {text}")
    out.print(_picture_options(found))
    if found.all_jobs:
        out.print(f"over all jobs: {found.all_jobs.reason}")
    for step in found.execution.steps if found.execution else ():
        out.print(f"{step.state:8} {step.act} {step.subject}  {step.message}")


@app.command()
def approve(decision: Id, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Let a decision be carried out; needs a token of scope act."""
    _order(decision, "approve", why, server, token)


@app.command()
def reject(decision: Id, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Keep a decision from being carried out; needs a token of scope act."""
    _order(decision, "reject", why, server, token)


@app.command()
def undo(decision: Id, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Give back what a decision took out of service, for good; needs a token of scope act."""
    _order(decision, "undo", why, server, token)


@app.command()
def outcome(
    incident: str,
    was_right: Annotated[bool, typer.Option("--right/--wrong", help="Was the named part at fault?")],
    part: Annotated[str, typer.Option(help="The part that was.")] = "",
    why: Why = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Say what an incident turned out to be, for the scorecard; needs a token of scope act."""
    with Client(server, token) as lockstep:
        lockstep.confirm(incident, was_right, part=part or None, why=why)
    out.print(f"{incident} is confirmed as {'right' if was_right else 'wrong'}")


@app.command()
def scorecard(server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Show what the advice would have been worth, against confirmed outcomes."""
    with Client(server, token) as lockstep:
        out.print_json(data=lockstep.scorecard())


@isolations.command("list")
def list_of_isolations(
    every: Annotated[bool, typer.Option("--all", help="Also those that are back in service.")] = False,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the nodes that are out of service, the oldest first."""
    found = ask(server, token, "/api/v1/isolated", {})["items"]
    shown = [item for item in found if every or item["state"] != "returned"]
    if as_json:
        out.print_json(data={"items": shown})
        return
    picture = Picture("node", "state", "part", "since", "next", "failed tests", "last word", box=None)
    for item in shown:
        picture.add_row(*_isolation_columns(item))
    out.print(picture)


@isolations.command("test")
def try_out(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Test a node now; it returns to service when it passes. Needs a token of scope act."""
    _order_node(node, "test", {"why": why}, server, token)


@isolations.command("return")
def give_back(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Return a node to service on your word, without a test. Needs a token of scope act."""
    _order_node(node, "return", {"why": why}, server, token)


@isolations.command()
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
    ids = {"uuid": uuid, "serial": serial, "ticket": ticket}
    part = {name: value for name, value in ids.items() if value}
    _order_node(node, "rma", {"why": why, "part": part}, server, token)


@isolations.command()
def repaired(node: Node, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Say that a new part is in: the node is tested, and its history starts anew. Needs a token of scope act."""
    _order_node(node, "repaired", {"why": why}, server, token)


@alerts.command("list")
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


@alerts.command("test")
def send_test(name: Name, server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Send a test message now and show what the receiver said; needs a token of scope admin."""
    reply = send(server, token, f"{_path(name)}/test", {})
    out.print(f"{name}: {'delivered' if reply['delivered'] else 'not delivered'}: {reply['said']}")
    if not reply["delivered"]:
        raise typer.Exit(1)


@alerts.command()
def enable(name: Name, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Send again to a receiver that was disabled; needs a token of scope admin."""
    _send_why(server, token, f"{_path(name)}/enable", why)
    out.print(f"{name} is enabled")


@alerts.command()
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


@alerts.command()
def replay(
    name: Name,
    message: Annotated[str, typer.Argument(help="Id of the message, from `lockstep alerts deliveries`.")],
    why: Why = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Send a message once more under its old id; needs a token of scope admin."""
    _send_why(server, token, f"{_path(name)}/deliveries/{quote(message, safe='')}/replay", why)
    out.print(f"{message} is sent to {name} again")


def _list_remarks(found: Decision) -> Iterator[tuple[str, str]]:
    """Yield what a person should know of a decision before they say yes to it."""
    remarks = [("automation", automation(found)), ("by hand", by_hand(found)), ("held", found.held_because or "")]
    yield from ((label, text) for label, text in remarks if text)
    if found.evidence_age_s is not None:
        yield "evidence", f"the fault was last seen {lasting(found.evidence_age_s)} before this was weighed"
    if found.trigger:
        yield "because", found.trigger
    if found.part_of:
        yield f"part of plan {found.part_of}", f"after {', '.join(found.after) or 'no other'}"
    if found.waits_until_ns is not None:
        yield "waits for the next checkpoint, until", rfc3339(found.waits_until_ns)
    if found.advice:
        yield "advice", found.advice


def _order(decision: str, kind: OrderKind, why: str, server: str, token: str) -> None:
    with Client(server, token) as lockstep:
        lockstep.order(decision, kind, why)
    out.print(f"{kind} {decision}: written down; the planner follows within seconds")


def _picture_options(found: DecisionFile) -> Picture:
    picture = Picture("action", "standstill s", "speed after", "GPU-hours", "risk", "because", box=None)
    for option in (Option(action=found.action, cost=found.cost, reason=""), *found.alternatives):
        cost = option.cost
        figures = (cost.downtime_s, cost.throughput_after, cost.gpu_hours, cost.risk)
        picture.add_row(option.action, *("" if each is None else f"{each:g}" for each in figures), option.reason)
    return picture


def _order_node(node: str, kind: str, body: Json, server: str, token: str) -> None:
    send(server, token, f"/api/v1/isolated/{quote(node, safe='')}/{kind}", body)
    out.print(f"{kind} {node}: written down; the planner follows within seconds")


def _isolation_columns(item: Json) -> tuple[str, ...]:
    sent = " ".join(f"{name} {value}" for name, value in (item["part"] or {}).items() if value)
    return (
        item["node"],
        item["state"],
        f"{item['component']} {sent}".strip(),
        rfc3339(item["since_ns"]),
        rfc3339(item["until_ns"]) if item["until_ns"] else "",
        str(item["tests"]),
        item["message"] or item["reason"],
    )


def _send_why(server: str, token: str, path: str, why: str) -> None:
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
