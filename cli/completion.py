"""What a shell offers after the tab key where only a running Lockstep knows: jobs and decisions, if it is near."""

from collections.abc import Callable, Iterable
from itertools import islice

import typer

from lockstep.client import Client
from lockstep.errors import LockstepError

_TIMEOUT_S = 0.5  # somebody waits with a finger on the key
_MOST = 100

Names = Callable[[Client], Iterable[str]]


def offer_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of a running Lockstep whose names begin so; none where no server answers at once."""
    return _offer(context, incomplete, lambda client: (job.job for job in client.jobs()))


def offer_decisions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the newest decisions that begin so, with the same patience."""
    return _offer(context, incomplete, lambda client: (decision.id for decision in client.decisions()))


def _offer(context: typer.Context, incomplete: str, names: Names) -> list[str]:
    told = context.params
    try:
        with Client(told["server"], told["token"] or "", timeout_s=_TIMEOUT_S) as client:
            return [name for name in dict.fromkeys(islice(names(client), _MOST)) if name.startswith(incomplete)]
    except LockstepError:
        return []  # a sentence would land in the middle of what is being typed
