"""Who stands still: processes in which nothing has begun or ended for longer than the job's own pace allows.

Standing alone is no trouble: in a checkpoint everybody stands. A standstill is one in which somebody is inside an
operation meanwhile, and that is where the search for who keeps him begins.
"""

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from analyzer.hangs.facts import HangOptions, Lines, People, ProgressFacts


@dataclass(frozen=True)
class Standstill:
    """Who is heard, who has not moved for too long, and which lines somebody is inside of meanwhile."""

    heard: np.ndarray  # by process: its rows reach up to the end of the look
    still: np.ndarray  # by process: heard, and nothing began or ended
    inside: np.ndarray  # by line: an operation has begun and does not end
    unsettled: np.ndarray  # by line: is inside one, too, but its newest row is too old to tell that it stands there
    since_ns: int  # when the last of those who are inside moved for the last time

    @property
    def is_hang(self) -> bool:
        """Return whether anybody waits at all."""
        return bool(self.inside.any())


def find_standstill(
    facts: ProgressFacts, silent: frozenset[str], options: HangOptions, is_told: bool = False
) -> Standstill:
    """Return who stands still at the end of a look; sooner where events tell why. Cost: O(lines)."""
    lines, people = facts.lines, facts.people
    seen_ns, moved_ns = _latest(lines.process, lines.seen_ns, len(people)), _moved(facts)
    fresh = facts.now_ns - options.quiet_ns
    heard = (seen_ns >= fresh) | _hosts_heard(facts, fresh)
    heard &= (seen_ns >= 0) & ~_is_on(people, silent)
    patience = 0 if facts.is_dump else options.patience_ns(facts.period_ns, facts.interval_ns, is_told)
    still = heard & (facts.now_ns - moved_ns >= patience)
    begun = lines.enqueued if facts.is_dump else lines.started
    inside = (begun > lines.done) & still[lines.process]
    unsettled = (begun > lines.done) & (heard & ~still)[lines.process] & (lines.seen_ns - lines.since_ns < patience)
    since_ns = int(moved_ns[lines.process[inside]].max(initial=0))
    return Standstill(heard, still, inside, unsettled & (facts.interval_ns > 0), since_ns)


def drop_unheard_of(lines: Lines) -> Lines:
    """Return the lines without those of which nobody ever heard a start: what is open there, nobody knows."""
    return lines.pick((lines.started > 0) | (lines.state != "unknown"))


def _moved(facts: ProgressFacts) -> np.ndarray:
    """Return when each process moved for the last time, on the clock of the newest row of all."""
    lines = facts.lines
    # How long it stands is a difference on its own host's clock; only then is it put on the common one.
    own_seen = _latest(lines.process, lines.seen_ns, len(facts.people))
    moved_ns: np.ndarray = facts.now_ns - (own_seen - _latest(lines.process, lines.since_ns, len(facts.people)))
    return moved_ns


def _latest(process: np.ndarray, moments_ns: np.ndarray, count: int) -> np.ndarray:
    latest = np.full(count, -1, np.int64)
    np.maximum.at(latest, process, moments_ns)
    return latest


def _hosts_heard(facts: ProgressFacts, fresh_ns: int) -> np.ndarray:
    """Return for each process whether its host has sent everything up to a moment, and had nothing new to tell."""
    return _is_on(facts.people, {host for host, heard_ns in facts.heard_ns.items() if heard_ns >= fresh_ns})


def _is_on(people: People, hosts: Set[str]) -> np.ndarray:
    """Return for each process whether it runs on one of some hosts."""
    return np.array([host in hosts for host in people.host_of.tolist()], bool)
