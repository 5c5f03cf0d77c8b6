"""lockstep decisions: what is proposed, and a person's word on it."""

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Picture

from cli.client import DEFAULT_SERVER, Server, Token, ask, tell
from cli.setup import out
from lockstep.clock import rfc3339

app = typer.Typer(no_args_is_help=True, help="What is proposed, done and undone, and what it was worth.")

Json = dict[str, Any]
Why = Annotated[str, typer.Option(help="Reason, kept in the audit.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@app.command("list")
def list_of_decisions(
    job: Annotated[str, typer.Option(help="Only those of one job.")] = "",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List the newest decisions."""
    found = ask(server, token, "/api/v1/decisions", {"job": job} if job else {})
    if as_json:
        out.print_json(data=found)
        return
    picture = Picture("id", "job", "action", "mode", "carried out", "made", "reason", box=None)
    for item in found["items"]:
        made = rfc3339(item["created_ns"])
        done = item["execution"] or ("held" if item["held_because"] else "")
        picture.add_row(item["id"], item["job"], item["action"], item["mode"], done, made, item["reason"])
    out.print(picture)


@app.command("show")
def show(decision: str, server: Server = DEFAULT_SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Show one decision: its cost, every alternative, and each step that was done."""
    found = ask(server, token, f"/api/v1/decisions/{quote(decision, safe='')}", {})
    if as_json:
        out.print_json(data=found)
        return
    out.print(f"{found['action']} for {found['job']}, severity {found['severity']}, mode {found['mode']}")
    out.print(found["reason"])
    if found["held_because"]:
        out.print(f"held: {found['held_because']}")
    out.print(_picture_options(found))
    if found["all_jobs"]:
        out.print(f"over all jobs: {found['all_jobs']['reason']}")
    for step in (found["execution"] or {}).get("steps", []):
        out.print(f"{step['state']:8} {step['act']} {step['subject']}  {step['said']}")


@app.command()
def approve(decision: str, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Let a decision be carried out; needs a token of scope act."""
    _order(decision, "approve", why, server, token)


@app.command()
def reject(decision: str, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Keep a decision from being carried out; needs a token of scope act."""
    _order(decision, "reject", why, server, token)


@app.command()
def undo(decision: str, why: Why = "", server: Server = DEFAULT_SERVER, token: Token = "") -> None:
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
    told = {"was_right": was_right, "part": part or None, "why": why}
    tell(server, token, "PUT", f"/api/v1/incidents/{quote(incident, safe='')}/outcome", told)
    out.print(f"{incident} is confirmed as {'right' if was_right else 'wrong'}")


@app.command()
def scorecard(server: Server = DEFAULT_SERVER, token: Token = "") -> None:
    """Show what the advice would have been worth, against confirmed outcomes."""
    out.print_json(data=ask(server, token, "/api/v1/scorecard", {}))


def _order(decision: str, kind: str, why: str, server: str, token: str) -> None:
    tell(server, token, "POST", f"/api/v1/decisions/{quote(decision, safe='')}/{kind}", {"why": why})
    out.print(f"{kind} {decision}: written down; the planner follows within seconds")


def _picture_options(found: Json) -> Picture:
    picture = Picture("action", "standstill s", "speed after", "GPU-hours", "risk", "because", box=None)
    for option in ({"action": found["action"], "cost": found["cost"], "reason": ""}, *found["alternatives"]):
        cost = option["cost"]
        figures = [cost[name] for name in ("downtime_s", "waf_after", "gpu_hours", "risk")]
        picture.add_row(
            option["action"], *("" if each is None else f"{each:g}" for each in figures), option["reason"]
        )
    return picture
