"""lockstep story: the fault stories that come with Lockstep."""

from typing import Annotated

import typer
from rich.table import Table as Picture

from cli.setup import out
from lockstep.sim.library import find_story, list_stories

app = typer.Typer(no_args_is_help=True, help="The fault stories that come with Lockstep.")


def offer_stories(incomplete: str) -> list[str]:
    """Return the stories whose names begin so, for a shell that completes one."""
    return [story.name for story in list_stories() if story.name.startswith(incomplete)]


@app.command("list")
def story_list(as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False) -> None:
    """List the stories."""
    stories = list_stories()
    if as_json:
        out.print_json(data=[{"name": story.name, "summary": story.summary} for story in stories])
        return
    picture = Picture("story", "what happens", box=None)
    for story in stories:
        picture.add_row(story.name, story.summary)
    out.print(picture)


@app.command("show")
def story_show(
    story: Annotated[str, typer.Argument(help="Name of the story.", autocompletion=offer_stories)],
) -> None:
    """Show a story with its cluster, its timeline and the verdict that is right."""
    out.print_json(data=find_story(story).model_dump(by_alias=True))
