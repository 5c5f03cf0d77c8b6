"""Whether a command line of ours would be taken: the command exists, and so do its options."""

from collections.abc import Sequence

from typer.core import TyperGroup
from typer.main import get_command

from cli.main import build


def check_command(words: Sequence[str]) -> None:
    """Fail unless `lockstep` followed by these words is a command with valid arguments; nothing is run."""
    command = get_command(build(words))
    rest = list(words)
    while isinstance(command, TyperGroup):
        assert rest, f"`lockstep {' '.join(words)}` stops before it names a command"
        name = rest.pop(0)
        assert name in command.commands, f"`lockstep {' '.join(words)}`: there is no {name!r}"
        command = command.commands[name]
    command.make_context(words[0], rest)
