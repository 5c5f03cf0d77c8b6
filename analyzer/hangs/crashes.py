"""Which of the processes that ended took the others with it.

When a rank dies its connections break, the ranks at their other ends give up, and within a second all of the job may
be gone: what ended first is the cause, and the rest follows from it. Whoever ends long after a job stands still was
ended by a watchdog, and is no reason for it.
"""

from analyzer.finding import Finding
from analyzer.hangs.facts import Happening
from analyzer.hangs.processes import ENDED, Scene, first_by_rank, name_ended

# With these a person or a scheduler asks a process to end.
_REQUESTED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
# Nobody ends like that because another rank did; a launcher that loses patience with its ranks kills them much later.
_VIOLENT = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_MOST_OTHERS = 4
_ALL_OF_IT = 0.5  # of the processes of a job: so many do not end at once, unless it was asked to


def name_first_ended(scene: Scene) -> list[Finding]:
    """Return the process that ended first, if those that the others wait for ended at all. Cost: O(processes)."""
    ended, origins = _find_ended(scene), scene.waits.origins
    awaited = origins if len(origins) else scene.involved
    if not ended or not set(awaited.tolist()) & ended.keys():
        return []
    first_ns = min(event.ts_ns for event in ended.values())
    together = [process for process, event in ended.items() if event.ts_ns - first_ns <= scene.options.together_ns]
    violent = [process for process in together if _was_killed_by(ended[process], _VIOLENT)]
    suspects = sorted(violent or together, key=lambda process: (ended[process].ts_ns, process))
    others = tuple(f"rank:{scene.rank_of(process)}" for process in suspects[1 : 1 + _MOST_OTHERS])
    return [name_ended(scene, suspects[0], ended[suspects[0]], others)]


def was_ended_by_request(scene: Scene) -> bool:
    """Return whether somebody asked the job to end: half of it has, and the first of them by such a signal."""
    ended = _find_ended(scene)
    if len(ended) < _ALL_OF_IT * len(scene.facts.people) or not ended:
        return False
    first = min(ended.values(), key=lambda event: event.ts_ns)
    return _was_killed_by(first, _REQUESTED)


def _was_killed_by(event: Happening, signals: tuple[str, ...]) -> bool:
    return any(f"was killed by {each}" in event.message for each in signals)


def _find_ended(scene: Scene) -> dict[int, Happening]:
    """Return the processes of the job that ended with the standstill, and how."""
    latest_ns = scene.since_ns + scene.options.after_ns
    told = first_by_rank(event for event in scene.timely(ENDED) if event.ts_ns <= latest_ns)
    if not told:
        return {}
    people = scene.facts.people
    keys = zip(people.host_of.tolist(), people.world_rank_of.tolist(), strict=True)
    return {process: told[key] for process, key in enumerate(keys) if key in told}
