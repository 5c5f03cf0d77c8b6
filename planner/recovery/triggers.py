"""What has happened in the cluster besides faults: nodes that came or went, jobs that began or ended.

Two looks are compared. Nothing of this is kept across a restart of the planner: what is best follows from how the
cluster is, not from what happened, and whoever begins looks once without any trigger.
"""

from dataclasses import dataclass

from planner.recovery.allocation.events import Event


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one look."""

    nodes: frozenset[str]  # that jobs hold, or could be given
    jobs: frozenset[str]  # those that have sent nothing for a while and are not known to be over included


def find_triggers(before: Seen | None, after: Seen) -> list[Event]:
    """Return what happened between two looks; nothing where there was none before."""
    if before is None:
        return []
    return [
        *(Event("node_joins", node) for node in sorted(after.nodes - before.nodes)),
        *(Event("node_lost", node) for node in sorted(before.nodes - after.nodes)),
        *(Event("job_starts", job) for job in sorted(after.jobs - before.jobs)),
        *(Event("job_ends", job) for job in sorted(before.jobs - after.jobs)),
    ]


def say(events: list[Event]) -> str:
    """Return what happened in words.

    >>> say([Event("node_joins", "h3"), Event("job_ends", "chat")])
    'node h3 joined, job chat ended'
    """
    if not events:
        return "the planner has looked at all jobs"
    words = {"node_joins": "joined", "node_lost": "was lost", "job_starts": "started", "job_ends": "ended"}
    said = [f"{event.kind.partition('_')[0]} {event.name} {words[event.kind]}" for event in events[:4]]
    return ", ".join(said) + (f" and {len(events) - 4} more" if len(events) > 4 else "")
