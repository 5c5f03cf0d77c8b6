"""lockstep simulate and scenario: the fault scenarios that come with Lockstep, and one of them as a capture."""

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Picture

from cli.setup import AsJson, err, out, progress_bar
from lockstep.capture.files import CaptureInfo, CaptureWriter, JobLayout
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from simulator.scenario import Scenario, find_scenario, list_scenarios, resize_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry

scenarios = typer.Typer(no_args_is_help=True, help="The fault scenarios that come with Lockstep.")

# Scenarios do not happen at any real time; a round number makes captures of the same seed identical.
_SCENARIO_START_NS = 1_700_000_000 * NS_PER_S


def offer_scenarios(incomplete: str) -> list[str]:
    """Return the scenarios whose names begin so, for a shell that completes one."""
    return [scenario.name for scenario in list_scenarios() if scenario.name.startswith(incomplete)]


def command(
    scenario: Annotated[
        str,
        typer.Argument(help="Name of the scenario; see `lockstep scenario list`.", autocompletion=offer_scenarios),
    ],
    target: Annotated[Path, typer.Option("--out", help="Capture to write: a directory, or a .tar.zst.")],
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks, instead of the scenario's own number.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 1,
) -> None:
    """Run a scenario and write its telemetry as a capture."""
    chosen = find_scenario(scenario)
    chosen = resize_scenario(chosen, ranks) if ranks else chosen
    err.print(f"scenario {chosen.name}, {chosen.ranks} ranks, {chosen.duration_s:g} s, seed {seed}")
    _write(chosen, seed, target)
    err.print(f"wrote {target}")


def _write(scenario: Scenario, seed: int, target: Path) -> None:
    identity = Identity(job=scenario.name, start_ns=_SCENARIO_START_NS)
    simulation = Simulation(scenario, seed)
    telemetry = SimulatedTelemetry(simulation, identity, heartbeats=True)
    with CaptureWriter(target) as writer, progress_bar() as progress:
        for second in progress.track(range(1, int(scenario.duration_s) + 1), description="simulating"):
            for name, rows in telemetry.advance(identity.start_ns + second * NS_PER_S).items():
                writer.write(TABLE_BY_NAME[name], rows)
        info = CaptureInfo(
            job=identity.job,
            start_ns=identity.start_ns,
            end_ns=telemetry.watermark_ns,
            layout=_layout(scenario),
            hosts=tuple(host.id for host in simulation.topology.hosts),
        )
        writer.finish(info, simulation.topology)


def _layout(scenario: Scenario) -> JobLayout | None:
    """Return the parallel layout where the scenario tells it: analyzers must do without."""
    tp, cp, dp, pp, ep = scenario.layout
    return JobLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep) if scenario.telemetry.layout else None


@scenarios.command("list")
def scenario_list(as_json: AsJson = False) -> None:
    """List the scenarios by family: a scenario is called FAMILY-VARIANT, or as its family where there is only one."""
    found = list_scenarios()
    if as_json:
        out.print_json(data=[{"name": scenario.name, "summary": scenario.summary} for scenario in found])
        return
    picture = Picture("family", "variants", "what happens, at its strongest", box=None)
    for family, members in groupby(sorted(found, key=lambda scenario: scenario.family), lambda each: each.family):
        every = list(members)
        variants = ", ".join(scenario.name.removeprefix(family).lstrip("-") for scenario in every)
        picture.add_row(family, variants, every[-1].summary)
    out.print(picture)


@scenarios.command("show")
def scenario_show(
    scenario: Annotated[str, typer.Argument(help="Name of the scenario.", autocompletion=offer_scenarios)],
) -> None:
    """Show a scenario with its cluster, its timeline and the verdict that is right."""
    out.print_json(data=find_scenario(scenario).model_dump(by_alias=True))
