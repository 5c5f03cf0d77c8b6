"""lockstep diagnose: what is wrong in a capture, or in a running job."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analyzer.service import ServiceOptions, diagnose
from cli.client import DEFAULT_SERVER, Server, Token, answered
from cli.setup import configure_logging, err, out
from lockstep.capture.exchange import load_capture
from lockstep.capture.reading import read_capture
from lockstep.clock import SystemClock, rfc3339
from lockstep.errors import ServerRefused
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import open_store
from lockstep.topology import TopologyIndex
from lockstep.verdict import Verdict


def command(
    capture: Annotated[Path | None, typer.Argument(help="Capture: a directory, or a .tar.zst.")] = None,
    job: Annotated[str | None, typer.Option(help="Ask the running Lockstep about this job instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Verdicts as JSON on standard output.")] = False,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Name the faulty parts; verdicts go to standard output, progress to standard error."""
    configure_logging("warning")
    if (capture is None) == (job is None):
        raise typer.BadParameter("give a capture, or --job with the name of a running job")
    verdicts = _diagnose_capture(capture) if capture else _ask(server, token, str(job))
    if as_json:
        json.dump([verdict.as_json() for verdict in verdicts], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(verdicts)


def _diagnose_capture(path: Path) -> list[Verdict]:
    err.print(f"reading {path}")
    capture = read_capture(path)
    rows = sum(table.num_rows for table in capture.tables.values())
    err.print(f"analysing {rows} rows of {len(capture.tables)} tables")
    with tempfile.TemporaryDirectory(prefix="lockstep-diagnose-") as folder, open_store(f"chdb://{folder}") as store:
        migrate(store, Layout(store.database), SystemClock().now_ns())
        load_capture(store, capture)
        topology = TopologyIndex(capture.topology) if capture.topology else None
        return [incident.verdict for incident in diagnose(store, topology, ServiceOptions())]


def _ask(server: str, token: str, job: str) -> list[Verdict]:
    with answered(server, token, "/api/v1/incidents", {"job": job}) as answer:
        text = answer.read()
    try:
        return [Verdict.model_validate(item["verdict"]) for item in json.loads(text)["items"]]
    except (ValueError, KeyError, TypeError):
        raise ServerRefused(f"what answers at {server} is no Lockstep server of this version", 200) from None


def _print(verdicts: list[Verdict]) -> None:
    if not verdicts:
        out.print("no verdict: nothing stands out in what was recorded, which is silence, not proof of health")
    for verdict in verdicts:
        out.print(
            Text(verdict.component, style="bold red"),
            f"{verdict.fault_class}, confidence {verdict.confidence:.2f}, "
            f"{rfc3339(verdict.since_ns)} to {rfc3339(verdict.last_seen_ns)}",
        )
        out.print(f"  {verdict.reason}")
        for cleared in verdict.ruled_out:
            out.print(f"  not {cleared.component}: {cleared.because}", style="dim")
