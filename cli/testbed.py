"""lockstep testbed: a fabric of network namespaces on this machine, and scenarios played on it."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import AsJson, err, out
from lockstep.errors import LockstepError
from simulator.scenario import build_topology, find_scenario
from tests.testbed.drill.phases import PHASES, run_drill
from tests.testbed.drill.timeline import describe as describe_drill
from tests.testbed.fabric.building import bring_up, take_down
from tests.testbed.paths.loop import LoopOptions, run_loop
from tests.testbed.paths.timeline import describe
from tests.testbed.scenarios.runner import Outcome, ReportedVerdict, run_scenario

app = typer.Typer(no_args_is_help=True, help="A fabric of network namespaces with real ranks; needs root.")


@app.command("up")
def up(
    scenario: Annotated[
        str, typer.Argument(help="Scenario whose cluster is built.")
    ] = "testbed-host-link-healthy-socket",
) -> None:
    """Build the fabric of a scenario and leave it up."""
    for line in bring_up(build_topology(find_scenario(scenario).cluster)):
        out.print(line, highlight=False)


@app.command("run")
def run(
    scenario: Annotated[str, typer.Argument(help="Scenario to play; see `lockstep scenario list`.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="New directory for logs, rings and state, which stays.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play a scenario in real time: real ranks, collectors, gateway, store and analyzer; compare the verdicts."""
    chosen = find_scenario(scenario)
    err.print(f"scenario {chosen.name}, {chosen.ranks} ranks, {chosen.duration_s:g} s, seed {seed}")
    outcome = run_scenario(chosen, seed, lambda text: err.print(text, style="dim"), keep)
    _print(outcome, as_json)
    if not outcome.is_right:
        missed = [f"{wanted.fault_class} {wanted.component} was not named in time" for wanted in outcome.missed]
        wrong = [f"{incident['verdict']['component']} was named without reason" for incident in outcome.wrong]
        raise LockstepError(f"scenario {chosen.name}: {'; '.join([*missed, *wrong])}")


@app.command("loop")
def loop(
    share: Annotated[float, typer.Option(min=0.01, max=0.99, help="What is left of the link's rate.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of the link.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="New directory for logs, rings and state, which stays.")] = None,
) -> None:
    """Make a link slow under a running job, and tell when it was named, left, and the job fast again."""
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-loop-"))) / "loop"
        timeline = run_loop(folder, LoopOptions(share=share, seed=seed), lambda text: err.print(text, style="dim"))
    for line in describe(timeline):
        out.print(line, highlight=False)
    if not timeline.is_closed:
        raise LockstepError(f"the loop was not closed: {timeline.link} was not named, or the job is still slow")


@app.command("drill")
def drill(
    phases: Annotated[str, typer.Option(help="What happens, in this order, with commas between.")] = ",".join(PHASES),
    keep: Annotated[Path | None, typer.Option(help="New directory for logs, rings and state, which stays.")] = None,
    as_json: AsJson = False,
) -> None:
    """Break hosts under a real job of a local Slurm, and tell how it is recovered; five minutes."""
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-drill-"))) / "drill"
        names = [name.strip() for name in phases.split(",")]
        timeline = run_drill(folder, names, lambda text: err.print(text, style="dim"))
    if as_json:
        out.print_json(data=timeline.as_json())
    else:
        for line in describe_drill(timeline):
            out.print(line, highlight=False)
    if timeline.problems:
        raise LockstepError(f"the drill did not go as it should: {'; '.join(timeline.problems)}")


@app.command("down")
def down(
    name: Annotated[str | None, typer.Argument(help="Which fabric; all, unless it is named.")] = None,
) -> None:
    """Remove fabrics that were left up, and whatever dead processes left."""
    gone = take_down(name)
    out.print(f"removed {', '.join(gone)}" if gone else "there was nothing to remove")


def _print(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        summary = {"scenario": outcome.scenario.name, "steps": outcome.steps, "right": outcome.is_right}
        out.print_json(
            data=summary
            | {
                "reported": [_describe(outcome, verdict) for verdict in outcome.reported],
                "incidents": list(outcome.incidents),
            }
        )
        return
    for incident in outcome.incidents:
        verdict = incident["verdict"]
        out.print(f"{verdict['class']} {verdict['component']} ({verdict['confidence']:.2f}): {verdict['reason']}")
    if first := outcome.first_right():
        after_s, steps = outcome.pace.seconds_until(first.at_ns), outcome.pace.steps_until(first.at_ns)
        usual = f"a step usually takes {outcome.pace.usual_s:.2f} s"
        out.print(f"{first.component} was reported {after_s:.1f} s and {steps} steps after the fault; {usual}")
    out.print(f"{outcome.steps} steps; {'as expected' if outcome.is_right else 'not as expected'}")


def _describe(outcome: Outcome, verdict: ReportedVerdict) -> dict[str, object]:
    pace = outcome.pace
    return {
        "class": verdict.fault_class,
        "component": verdict.component,
        "confidence": verdict.confidence,
        "seconds": round(pace.seconds_until(verdict.at_ns), 3),
        "seconds_of_telemetry": round(pace.seconds_until(verdict.evaluated_ns), 3),
        "steps": pace.steps_until(verdict.at_ns),
        "within_floor": pace.is_within(verdict.at_ns, 5, 5.0),
        "within_goal": pace.is_within(verdict.at_ns, 3, 2.0),
        "right": any(verdict.is_right(wanted) for wanted in outcome.scenario.expect),
    }
