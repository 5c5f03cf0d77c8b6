"""lockstep diagnose and explain: what is wrong in a capture, in a running job, or in files of other tools."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from analyzer.diagnosis import describe
from analyzer.pipeline import FollowOptions
from cli.client import DEFAULT_SERVER, Server, Token, offer_jobs
from cli.report import Described, OnlyIncidents, print_report
from cli.setup import configure_logging, err, out, progress_bar, progress_of
from importers.traces.formats import FORMATS, Found, find_recordings
from importers.traces.formats import describe as describe_format
from importers.traces.readings import count_sentences
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import Capture, read_capture
from lockstep.client import Client
from lockstep.clock import SystemClock
from lockstep.errors import BadInput, LockstepError
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.topology import TopologyIndex

_NEWEST = 100  # incidents of a running job that are told
_MOST_NAMED = 8
_MOST_EVENTS = 20
_TOLD_BY_RANKS = ("collectives", "progress")


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
        from cli.report import render_page  # with the templates, which a report in the terminal does not need

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


def explain(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, and folders with files below them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Verdicts as JSON on standard output.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with pictures; of several runs, one page each.")
    ] = None,
) -> None:
    """Name the faulty parts from files of other tools, as they lie in a folder.

    Dumps of PyTorch's flight recorder, NCCL Inspector, NCCL RAS, nccl-tests, Kineto, Megatron, MLPerf, gpud,
    Alertmanager, and captures of Lockstep are told apart by what is in them.
    """
    configure_logging("warning")
    found = find_recordings(paths)
    told: list[tuple[str, Described]] = []
    for title, capture in _captures(found):
        if not as_json:
            out.rule(title, align="left")
        described = diagnose_capture(capture)
        told.append((title, described))
        if not as_json:
            events = _name_events(capture)
            if described.incidents or not events:
                print_report(out, described)
            for sentence in (*events, *_name_missing(capture)):
                out.print(sentence, highlight=False)
    _name_unknown(found)
    if not told:
        raise BadInput("none of these files is a recording that Lockstep reads: see `lockstep import --help`")
    if as_json:
        json.dump([_as_json(*each) for each in told], sys.stdout, indent=2)
        sys.stdout.write("\n")
    if html:
        _write_pages(html, told)


def _captures(found: Found) -> list[tuple[str, Capture]]:
    captures: list[tuple[str, Capture]] = []
    with progress_bar() as progress:
        files = [path for paths in found.recordings.values() for path in paths]
        task = progress.add_task("reading", total=sum(path.stat().st_size for path in files))
        for path in found.captures:
            with _guarded():
                captures.append((str(path), read_capture(path)))
        for (name, folder), paths in found.recordings.items():
            with _guarded():
                job = folder.name or name
                reading = FORMATS[name](paths, job, lambda count: progress.advance(task, count))
                tables = reading.tables()
                captures.append((_title(name, folder, paths), Capture(describe_format(job, tables), None, tables)))
                for sentence in count_sentences(reading.unread):
                    err.print(sentence, highlight=False)
    return captures


@contextmanager
def _guarded() -> Iterator[None]:
    """Say what is wrong with some files; the others are told all the same."""
    try:
        yield
    except (LockstepError, OSError) as error:
        err.print(str(error), style="red", highlight=False)


def _title(name: str, folder: Path, paths: Sequence[Path]) -> str:
    return f"{paths[0]}: {name}" if len(paths) == 1 else f"{folder}: {name}, {len(paths)} files"


def _name_events(capture: Capture) -> list[str]:
    """Return what was reported about hosts, the gravest first."""
    events = capture.tables.get("events")
    if events is None:
        return []
    grave = events.filter(pc.is_in(events["severity"], pa.array(["critical", "error", "warning"]))).to_pylist()
    grave.sort(key=lambda event: (["critical", "error", "warning"].index(event["severity"]), event["ts_ns"]))
    more = [f"... and {len(grave) - _MOST_EVENTS} more"] if len(grave) > _MOST_EVENTS else []
    return [f"{event['severity']}: {event['component']}: {event['message']}" for event in grave[:_MOST_EVENTS]] + more


def _name_missing(capture: Capture) -> list[str]:
    """Return which ranks of the job have no file here: one of them may be the one that everybody waits for."""
    comms = capture.tables.get("comms")
    rows = [capture.tables[name] for name in _TOLD_BY_RANKS if name in capture.tables]
    if comms is None or not rows:
        return []
    world = comms.filter(pc.equal(comms["nranks"], pc.max(comms["nranks"])))
    speaking = pc.unique(pa.chunked_array([chunk for table in rows for chunk in table["host"].chunks]))
    reporting = set(world.filter(pc.is_in(world["host"], speaking))["rank"].to_pylist())
    size = pc.max(comms["nranks"]).as_py()
    missing = [str(rank) for rank in range(min(size, 1 << 20)) if rank not in reporting]
    if not missing:
        return []
    named = ", ".join(missing[:_MOST_NAMED]) + (" and others" if len(missing) > _MOST_NAMED else "")
    return [
        f"of {len(missing)} of {size} ranks there is no file here (rank {named}): theirs would settle what is open"
    ]


def _name_unknown(found: Found) -> None:
    if found.unknown:
        names = ", ".join(str(path) for path in found.unknown[:_MOST_NAMED])
        more = f" and {len(found.unknown) - _MOST_NAMED} more" if len(found.unknown) > _MOST_NAMED else ""
        err.print(f"not a recording that Lockstep reads: {names}{more}", highlight=False)


def _as_json(title: str, described: Described) -> dict[str, Any]:  # Any: JSON
    return {"recording": title, "verdicts": [incident.verdict.as_json() for incident in described.incidents]}


def _write_pages(html: Path, told: Sequence[tuple[str, Described]]) -> None:
    from cli.report import render_page  # with the templates, which a report in the terminal does not need

    for number, (title, described) in enumerate(told, 1):
        page = html if number == 1 else html.with_stem(f"{html.stem}-{number}")
        page.write_text(render_page(described, title), encoding="utf-8")
        err.print(f"wrote {page}")
