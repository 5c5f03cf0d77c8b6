"""lockstep testbed: a fabric of network namespaces on this machine, and stories told on it."""

from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err, out
from lockstep.errors import LockstepError
from lockstep.sim.library import find_story
from lockstep.sim.story import build_topology
from testbed.commands import bring_up, take_down
from testbed.stories.telling import Outcome, tell

app = typer.Typer(no_args_is_help=True, help="A fabric of network namespaces with real ranks; needs root.")


@app.command("up")
def up(
    story: Annotated[str, typer.Argument(help="Story whose cluster is built.")] = "testbed-host-link-healthy-socket",
) -> None:
    """Build the fabric of a story and leave it up."""
    for line in bring_up(build_topology(find_story(story).cluster)):
        out.print(line, highlight=False)


@app.command("run")
def run(
    story: Annotated[str, typer.Argument(help="Story to tell; see `lockstep story list`.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="New directory for logs, rings and state, which stays.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Tell a story in real time: real ranks, collectors, gateway, store and analyzer; then compare the verdicts."""
    told = find_story(story)
    err.print(f"story {told.name}, {told.ranks} ranks, {told.duration_s:g} s, seed {seed}")
    outcome = tell(told, seed, lambda text: err.print(text, style="dim"), keep)
    _print(outcome, as_json)
    if not outcome.is_right:
        raise LockstepError(_what_went_wrong(outcome))


@app.command("down")
def down(
    name: Annotated[str | None, typer.Argument(help="Which fabric; all, when it is not told.")] = None,
) -> None:
    """Remove fabrics that were left up, and whatever dead processes left."""
    gone = take_down(name)
    out.print(f"removed {', '.join(gone)}" if gone else "there was nothing to remove")


def _print(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        told = {"story": outcome.story.name, "steps": outcome.steps, "right": outcome.is_right}
        out.print_json(data=told | {"incidents": list(outcome.incidents)})
        return
    for incident in outcome.incidents:
        verdict = incident["verdict"]
        out.print(f"{verdict['class']} {verdict['component']} ({verdict['confidence']:.2f}): {verdict['reason']}")
    out.print(f"{outcome.steps} steps; {'as expected' if outcome.is_right else 'not as expected'}")


def _what_went_wrong(outcome: Outcome) -> str:
    missed = [f"{wanted.fault_class} {wanted.component} was not named in time" for wanted in outcome.missed]
    wrong = [f"{incident['verdict']['component']} was named without reason" for incident in outcome.wrong]
    return f"story {outcome.story.name}: {'; '.join([*missed, *wrong])}"
