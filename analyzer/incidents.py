"""Is it new, the same, or over: verdicts of single windows become incidents with a beginning and an end."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from analyzer.facts import WindowFacts
from analyzer.windows import Window
from lockstep.incident import Incident
from lockstep.topology import split_end
from lockstep.verdict import Verdict

Key = tuple[str, str]  # class, component: the same fault, whichever of its sides shows in a window


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """How long a fault must last to be told, and be gone to be over."""

    confirm_windows: int = 2  # one window can be a burst of somebody else's traffic
    clear_windows: int = 3  # longer than it takes to appear, so that a fault at the edge does not flap
    usual_windows: int = 12  # a minute of windows of five seconds tells how fast the job usually is
    forget_ns: int = 120_000_000_000  # a job that finished nothing for this long is gone, and so are its incidents


@dataclass(frozen=True)
class Seen:
    """A fault in consecutive windows."""

    since_ns: int
    windows: int = 1
    clear: int = 0


@dataclass(frozen=True)
class JobState:
    """What is remembered of a job between windows."""

    seen: Mapping[Key, Seen] = field(default_factory=dict)
    open: Mapping[Key, Incident] = field(default_factory=dict)
    paces: tuple[float, ...] = ()  # of windows without a fault, newest last

    @property
    def usual_pace(self) -> float | None:
        return median(self.paces) if self.paces else None


def resume(incidents: Iterable[Incident]) -> JobState:
    """Return the state of a job whose open incidents were found in the control database."""
    open_now = {_key(incident.verdict): incident for incident in incidents}
    seen = {key: Seen(incident.verdict.since_ns, windows=1_000) for key, incident in open_now.items()}
    return JobState(seen=seen, open=open_now)


def learn_pace(
    state: JobState, verdicts: list[Verdict] | None, facts: WindowFacts, options: TrackingOptions
) -> JobState:
    """Return the state with the pace of one more window, unless something was wrong or nothing to see in it."""
    if verdicts or verdicts is None or facts.pace is None:
        return state
    return replace(state, paces=(*state.paces, facts.pace)[-options.usual_windows :])


def track(
    state: JobState, verdicts: list[Verdict] | None, facts: WindowFacts, options: TrackingOptions
) -> tuple[JobState, list[Incident]]:
    """Return the state after one window, and the incidents that were opened, updated or closed by it.

    A window that could not be judged (None) changes nothing.
    """
    if verdicts is None:
        return state, []
    found = {_key(verdict): verdict for verdict in verdicts}
    seen = _count(state.seen, found, facts, options)
    opened = {
        key: _incident(state.open.get(key), found[key], seen[key], facts.window)
        for key in found
        if key in state.open or seen[key].windows >= options.confirm_windows
    }
    closed = [
        _close(incident, facts.window.end_ns, "the part has been normal again")
        for key, incident in state.open.items()
        if key not in seen
    ]
    still = {key: incident for key, incident in {**state.open, **opened}.items() if key in seen}
    learnt = learn_pace(state, verdicts, facts, options)
    return replace(learnt, seen=seen, open=still), [*opened.values(), *closed]


def close_all(state: JobState, now_ns: int) -> tuple[JobState, list[Incident]]:
    """Return the state of a job that is gone, and its incidents closed for that reason."""
    closed = [_close(incident, now_ns, "the job ended or sends nothing any more") for incident in state.open.values()]
    return replace(state, seen={}, open={}), closed


def _count(
    seen: Mapping[Key, Seen], found: Mapping[Key, Verdict], facts: WindowFacts, options: TrackingOptions
) -> dict[Key, Seen]:
    start_ns = facts.window.start_ns
    again = {
        key: replace(seen[key], windows=seen[key].windows + 1, clear=0) if key in seen else Seen(start_ns)
        for key in found
    }
    absent = {
        key: past if _is_hidden(key, facts.silent) else replace(past, clear=past.clear + 1)
        for key, past in seen.items()
        if key not in found
    }
    kept = {
        key: past
        for key, past in absent.items()
        if past.windows >= options.confirm_windows and past.clear < options.clear_windows
    }
    return again | kept


def _is_hidden(key: Key, silent: frozenset[str]) -> bool:
    """Return whether a host of the part says nothing: not seen is not normal."""
    ends = key[1].partition(":")[2].split("--")
    return any(split_end(end)[0] in silent for end in ends)


def _incident(known: Incident | None, verdict: Verdict, seen: Seen, window: Window) -> Incident:
    identity = known.id if known else _identify(verdict, seen.since_ns)
    verdict = verdict.model_copy(update={"id": identity, "since_ns": seen.since_ns})
    return Incident(
        id=identity,
        job=verdict.job,
        attempt=verdict.attempt,
        state="open",
        opened_ns=known.opened_ns if known else window.end_ns,
        updated_ns=window.end_ns,
        verdict=verdict,
    )


def _close(incident: Incident, now_ns: int, because: str) -> Incident:
    return incident.model_copy(
        update={"state": "closed", "closed_ns": now_ns, "updated_ns": now_ns, "closed_because": because}
    )


def _key(verdict: Verdict) -> Key:
    return verdict.fault_class, verdict.component


def _identify(verdict: Verdict, since_ns: int) -> str:
    """Return an id that a second analysis of the same windows gives again."""
    text = f"{verdict.job}/{verdict.attempt}/{verdict.fault_class}/{verdict.component}/{since_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
