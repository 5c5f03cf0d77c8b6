"""lockstep topology: what is cabled to what, read from other tools, checked, shown, compared, and published."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Picture

from cli.setup import AsJson, Why, err, out, settings_of, who_asks
from importers.topology.formats import FORMATS, Input, import_topology, known_format, write_topology
from importers.topology.joining import JoinOptions
from importers.topology.summary import TopologySummary, find_changes, summarise
from lockstep.clock import SystemClock, rfc3339
from lockstep.config import make_state_dir
from lockstep.errors import BadInput, BadTopology
from lockstep.state.database import open_control
from lockstep.state.fabric import find_topology, list_topologies, publish_topology
from lockstep.topology import Routing, load_topology

app = typer.Typer(no_args_is_help=True, help="What is cabled to what.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A topology.json.")]

_MOST_LINES = 50  # of one kind; --json has all


@app.command("import")
def import_command(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="What describes the fabric; a directory stands for its files."),
    ],
    target: Annotated[Path, typer.Option("--out", help="The topology.json to write.")],
    others: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="FORMAT:PATH", help="More to join, such as nccl-xml:hosts/; may be repeated."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Node that the one file is of, where its name is another.")] = None,
    routing: Annotated[
        Routing | None, typer.Option(help="How switches choose among equal paths, which few formats say.")
    ] = None,
    gbps: Annotated[float, typer.Option(help="Rate of links for which none is known.")] = JoinOptions().gbps,
    as_json: AsJson = False,
) -> None:
    """Turn other tools' descriptions of a fabric into a topology.json, and say what had to be assumed."""
    if not 0 < gbps < float("inf"):
        raise BadInput(f"--gbps is {gbps:g}, but a rate is finite and above 0")
    inputs = [Input(known_format(format_name), tuple(files), host), *(_split_input(text) for text in others or [])]
    imported = import_topology(inputs, JoinOptions(gbps, routing))
    write_topology(imported.topology, target)
    if as_json:
        out.print_json(data={"assumed": imported.assumed, **asdict(summarise(imported.topology))})
        return
    _print_lines("assumed", imported.assumed)
    counts = f"{len(imported.topology.hosts)} hosts, {len(imported.topology.switches)} switches"
    err.print(f"wrote {target}: {counts}, {len(imported.topology.links)} links")


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Say what contradicts itself in a topology.json; the exit code is 1 where something does."""
    if not as_json:
        load_topology(file)
        out.print(f"{file} is sound")
        return
    try:
        load_topology(file)
        complaints = []
    except BadTopology as error:
        complaints = error.complaints
    out.print_json(data={"complaints": complaints})
    if complaints:
        sys.exit(1)


@app.command("show")
def show(file: File, as_json: AsJson = False) -> None:
    """Show tiers and their oversubscription, planes, rails, and links that are missing, slow or down."""
    summary = summarise(load_topology(file))
    if as_json:
        out.print_json(data=asdict(summary))
        return
    _print_summary(summary)
    _print_lines("uneven", summary.uneven, on_output=True)


@app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A topology.json.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A topology.json.")],
    as_json: AsJson = False,
) -> None:
    """Say what was added, removed and changed from one topology to another."""
    changes = find_changes(load_topology(old), load_topology(new))
    if as_json:
        out.print_json(data=asdict(changes))
        return
    if changes.is_empty:
        out.print("no difference")
    for what, lines in asdict(changes).items():
        _print_lines(what, lines, on_output=True)


@app.command("publish")
def publish(
    context: typer.Context,
    file: File,
    why: Why = "",
) -> None:
    """Make a topology.json the newest version of the cluster's topology."""
    settings, topology = settings_of(context), load_topology(file)
    make_state_dir(settings)
    with open_control(settings.control_url) as control:
        version, is_new = publish_topology(
            control, topology, source=str(file), now_ns=SystemClock().now_ns(), who=who_asks(), why=why
        )
    err.print(
        f"{file} is version {version.number}" if is_new else f"version {version.number} is the same: nothing new"
    )


@app.command("history")
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many versions, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the versions that were published."""
    with open_control(settings_of(context).control_url) as control:
        versions = list_topologies(control, limit)
    if as_json:
        out.print_json(data=[version.model_dump() for version in versions])
        return
    picture = Picture("version", "published", "by", "from", "digest", box=None)
    for version in versions:
        made = rfc3339(version.created_ns)
        picture.add_row(str(version.number), made, version.who, version.source, version.digest[:12])
    out.print(picture)


@app.command("fetch")
def fetch(
    context: typer.Context,
    target: Annotated[Path, typer.Option("--out", help="The topology.json to write.")],
    number: Annotated[int | None, typer.Argument(metavar="[VERSION]", help="The newest by default.")] = None,
) -> None:
    """Write a published version to a file."""
    with open_control(settings_of(context).control_url) as control:
        version, topology = find_topology(control, number)
    write_topology(topology, target)
    err.print(f"wrote {target}: version {version.number}, published {rfc3339(version.created_ns)} by {version.who}")


def _split_input(text: str) -> Input:
    name, colon, path = text.partition(":")
    if not colon or not path:
        raise BadInput(f"--with is {text!r}, but must be FORMAT:PATH, such as nccl-xml:hosts/")
    return Input(known_format(name), (Path(path),))


def _print_summary(summary: TopologySummary) -> None:
    out.print(
        f"{summary.hosts} hosts, {summary.gpus} GPUs, {summary.nics} NICs, {summary.links} links "
        f"({summary.down} down), routing {summary.routing}"
    )
    picture = Picture("tier", "switches", "Gbit/s down", "Gbit/s up", "oversubscribed", "worst", box=None)
    for tier in summary.tiers:
        ratio = f"{tier.oversubscription:.2f}" if tier.oversubscription is not None else ""
        worst = f"{tier.worst:.2f} {tier.worst_switch}" if tier.worst is not None else ""
        picture.add_row(tier.tier, str(tier.switches), f"{tier.down_gbps:,g}", f"{tier.up_gbps:,g}", ratio, worst)
    out.print(picture)
    for what, counts in (("plane", summary.planes), ("rail", summary.rails)):
        if counts:
            out.print(f"{what}s: " + ", ".join(f"{name} ({nics} NICs)" for name, nics in counts.items()))


def _print_lines(title: str, lines: tuple[str, ...], on_output: bool = False) -> None:
    console = out if on_output else err
    if lines:
        console.print(f"{title}:")
    for line in lines[:_MOST_LINES]:
        console.print(f"  - {line}", highlight=False)
    if len(lines) > _MOST_LINES:
        console.print(f"  and {len(lines) - _MOST_LINES} more")
