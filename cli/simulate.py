"""lockstep simulate: a story into a capture."""

from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err, progress_bar
from cli.story import offer_stories
from lockstep.capture.contents import CaptureInfo, JobLayout
from lockstep.capture.writing import CaptureWriter
from lockstep.clock import NS_PER_S
from lockstep.sim.library import find_story
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Story, resize_story
from lockstep.sim.telemetry import Identity, SimulatedTelemetry
from lockstep.tables import TABLE_BY_NAME

# Stories do not happen at any real time; a round number makes captures of the same seed identical.
_STORY_START_NS = 1_700_000_000 * NS_PER_S


def command(
    story: Annotated[
        str, typer.Argument(help="Name of the story; see `lockstep story list`.", autocompletion=offer_stories)
    ],
    target: Annotated[Path, typer.Option("--out", help="Capture to write: a directory, or a .tar.zst.")],
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks, instead of the story's own number.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all noise.")] = 1,
) -> None:
    """Run a story and write what its hosts would have sent as a capture."""
    told = find_story(story)
    told = resize_story(told, ranks) if ranks else told
    err.print(f"story {told.name}, {told.ranks} ranks, {told.duration_s:g} s, seed {seed}")
    _write(told, seed, target)
    err.print(f"wrote {target}")


def _write(story: Story, seed: int, target: Path) -> None:
    identity = Identity(job=story.name, start_ns=_STORY_START_NS)
    simulation = Simulation(story, seed)
    telemetry = SimulatedTelemetry(simulation, identity, heartbeats=True)
    with CaptureWriter(target) as writer, progress_bar() as progress:
        for second in progress.track(range(1, int(story.duration_s) + 1), description="simulating"):
            for name, rows in telemetry.advance(identity.start_ns + second * NS_PER_S).items():
                writer.write(TABLE_BY_NAME[name], rows)
        info = CaptureInfo(
            job=identity.job,
            start_ns=identity.start_ns,
            end_ns=telemetry.watermark_ns,
            layout=_layout(story),
            hosts=tuple(host.id for host in simulation.topology.hosts),
        )
        writer.finish(info, simulation.topology)


def _layout(story: Story) -> JobLayout | None:
    """Return the parallel layout where the story tells it: analyzers must do without."""
    tp, cp, dp, pp, ep = story.layout
    return JobLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep) if story.telling.layout else None
