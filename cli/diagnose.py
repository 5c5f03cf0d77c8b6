"""lockstep diagnose: what is wrong in a capture, or in a running job."""

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from analyzer.diagnosis import describe
from analyzer.pipeline import FollowOptions
from cli.client import DEFAULT_SERVER, Server, Token, offer_jobs
from cli.report import Described, OnlyIncidents, print_report
from cli.setup import configure_logging, err, out, progress_of
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import Capture, read_capture
from lockstep.client import Client
from lockstep.clock import SystemClock
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.topology import TopologyIndex

_NEWEST = 100  # incidents of a running job that are told


def command(
    capture: Annotated[Path | None, typer.Argument(help="Capture: a directory, or a .tar.zst.")] = None,
    job: Annotated[
        str | None,
        typer.Option(help="Ask the running Lockstep about this job instead.", autocompletion=offer_jobs),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Verdicts as JSON on standard output.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with pictures, which needs no other file.")
    ] = None,
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Name the faulty parts of a capture, or of a running job.

    Verdicts go to standard output, progress to standard error.
    """
    configure_logging("warning")
    if (capture is None) == (job is None):
        raise typer.BadParameter("give a capture, or --job with the name of a running job")
    described = _diagnose_file(capture) if capture else _ask(server, token, str(job))
    if html:
        from cli.report_page import render_page  # with the templates, which a report in the terminal does not need

        html.write_text(render_page(described, str(job or capture)), encoding="utf-8")
        err.print(f"wrote {html}")
    if as_json:
        json.dump([incident.verdict.as_json() for incident in described.incidents], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_report(out, described)


def _diagnose_file(path: Path) -> Described:
    err.print(f"reading {path}")
    return diagnose_capture(read_capture(path))


def diagnose_capture(capture: Capture) -> Described:
    """Return what is wrong in a capture; progress goes to standard error."""
    rows = sum(table.num_rows for table in capture.tables.values())
    err.print(f"analysing {rows} rows of {len(capture.tables)} tables")
    with tempfile.TemporaryDirectory(prefix="lockstep-diagnose-") as folder, open_store(f"chdb://{folder}") as store:
        migrate(store, Layout(store.database), SystemClock().now_ns())
        with progress_of("rows loaded") as loaded:
            load_capture(store, capture, loaded)
        topology = TopologyIndex(capture.topology) if capture.topology else None
        with progress_of("windows evaluated") as evaluated:
            return describe(store, topology, FollowOptions(), capture.info.job, watch=evaluated)


def _ask(server: str, token: str, job: str) -> Described:
    with Client(server, token) as lockstep:
        return OnlyIncidents(list(islice(lockstep.incidents(job=job), _NEWEST)))
