"""lockstep plan: which road each flow takes, before anybody drives on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer
from rich.table import Table as Picture

from cli.plan_recovery import plan_of_recovery
from cli.plan_schedule import plan_of_schedule
from cli.setup import err, out
from lockstep.errors import BadInput
from lockstep.topology import load_topology
from planner.paths.advice import NcclAdvice, advise_nccl
from planner.paths.ecmp import choose_by_chance
from planner.paths.explaining import explain
from planner.paths.flows import Flow, parse_flows
from planner.paths.network import Network, build_network, with_rates, without
from planner.paths.picture import draw_loads
from planner.paths.plan_file import from_json, to_json
from planner.paths.planning import PathPlan, PlanOptions, plan_paths
from planner.paths.roads import Roads, find_use

app = typer.Typer(no_args_is_help=True, help="Plans for traffic and for recovery.")


@app.callback()
def plan() -> None:
    """Make one command of several: typer would take the only one for the whole."""


app.command("recovery")(plan_of_recovery)
app.command("schedule")(plan_of_schedule)


@app.command("paths")
def plan_of_paths(
    topology: Annotated[Path, typer.Option(help="topology.json of the cluster.")],
    flows: Annotated[Path, typer.Option(help="Rows {id, src, dst, gbps}: .json, .jsonl, .csv or .parquet.")],
    without_parts: Annotated[
        list[str] | None, typer.Option("--without", metavar="PART", help="Link, switch or NIC that carries nothing.")
    ] = None,
    slow: Annotated[
        list[str] | None, typer.Option(metavar="PART=SHARE", help="Part that carries only a share of its rate.")
    ] = None,
    before: Annotated[Path | None, typer.Option(help="Plan that holds now; few of its flows are moved.")] = None,
    most_moved: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the flows that may move besides those that must.")
    ] = PlanOptions().most_moved,
    says_why: Annotated[bool, typer.Option("--explain", help="Say how good it is, what limits it, and why.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Picture of link loads to write: without a plan, and with it.")
    ] = None,
    nccl: Annotated[
        Path | None, typer.Option(help="Directory for what stock NCCL honours: variables and order of hosts.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--out", help="File to write the plan to, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Give each flow a road so that the fullest link is as empty as it can be."""
    network = _read_network(topology, without_parts or [], slow or [])
    rows = parse_flows(_read_rows(flows))
    held = from_json(network, rows, _read_json(before)) if before else None
    made = plan_paths(network, rows, held, PlanOptions(most_moved=most_moved))
    if target:
        target.write_text(json.dumps(to_json(made)) + "\n", encoding="utf-8")
    if svg:
        svg.write_text(_draw(made, held), encoding="utf-8")
    if nccl:
        _write_advice(nccl, advise_nccl(network, list(dict.fromkeys(row.src.partition("/")[0] for row in rows))))
    if as_json:
        out.print_json(data=to_json(made))
    else:
        _print(made, held, rows, says_why)


def _read_network(topology: Path, dead: list[str], slow: list[str]) -> Network:
    network = without(build_network(load_topology(topology)), dead)
    return with_rates(network, dict(_read_share(text) for text in slow))


def _read_share(text: str) -> tuple[str, float]:
    name, sign, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not sign or not 0 <= value <= 1:
        raise BadInput(f"--slow {text}: expected PART=SHARE with a share from 0 to 1, such as leaf1--spine2=0.5")
    return name, value


def _read_rows(path: Path) -> list[Any]:
    """Return the rows of a file as plain values."""
    try:
        match path.suffix:
            case ".csv":
                # Names of flows and NICs are words, also where they look like numbers.
                kinds = {name: pa.string() for name in ("id", "src", "dst", "job")}
                rows: list[Any] = pa_csv.read_csv(
                    path, convert_options=pa_csv.ConvertOptions(column_types=kinds)
                ).to_pylist()
            case ".parquet":
                rows = pq.read_table(path).to_pylist()
            case ".jsonl":
                rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            case _:
                rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read as rows of flows: {error}") from error
    return rows


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as a plan: {error}") from error


def _draw(made: PathPlan, held: PathPlan | None) -> str:
    if held:
        return draw_loads(made.network, {"plan before": held.load, "plan now": made.load}, "Link loads")
    roads = Roads(made.network, made.flows)
    by_chance = roads.find_loads(choose_by_chance(roads, seed=1))
    return draw_loads(made.network, {"ECMP, one draw": by_chance, "planned": made.load}, "Link loads")


def _write_advice(folder: Path, advice: NcclAdvice) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    said = "".join(f"# {note}\n" for note in advice.notes)
    for name, variables in {"all": advice.variables, **advice.by_host}.items():
        lines = "".join(f"{variable}={value}\n" for variable, value in variables.items())
        (folder / f"{name}.env").write_text(said + lines, encoding="utf-8")
    (folder / "hosts").write_text("".join(f"{host}\n" for host in advice.host_order), encoding="utf-8")


def _print(made: PathPlan, held: PathPlan | None, rows: list[Flow], says_why: bool) -> None:
    if says_why:
        for sentence in explain(made, held):
            out.print(sentence)
        out.print()
    picture = Picture("flow", "from", "to", "gbps", "over", box=None)
    for row, lanes in zip(rows, made.all_lanes(), strict=True):
        over = ", ".join(made.network.link_of(lane) for lane in lanes) or "no way"
        picture.add_row(row.id, row.src, row.dst, f"{row.gbps:g}", over)
    out.print(picture)
    use = find_use(made.network, made.load)[made.network.fabric].max(initial=0.0)
    err.print(f"fullest link {use:.1%}, no plan can be below {made.bound:.1%}")
