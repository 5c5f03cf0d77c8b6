"""One job from look to look: what its stages and its incidents remember, live and in captures alike."""

from dataclasses import dataclass, field, replace

from analyzer.context import Context
from analyzer.faults.wishes import propose_wishes
from analyzer.incidents import JobState, TrackingOptions, track
from analyzer.jobs import JobSpan
from analyzer.looks import LookOptions
from analyzer.pipeline import AnalyzerOptions, Judgement, StageMemory, judge
from analyzer.roster import Roster
from analyzer.steps.history import step_time_ratio
from analyzer.windows import Window
from lockstep.incident import Incident
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from lockstep.wish import Wish

Who = tuple[Roster, frozenset[str], TopologyIndex | None]  # takes part, says nothing, is cabled how


@dataclass(frozen=True)
class FollowOptions:
    """How often to look, what the stages are told, and when findings become incidents."""

    looks: LookOptions = field(default_factory=LookOptions)
    analyzer: AnalyzerOptions = field(default_factory=AnalyzerOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)


@dataclass(frozen=True)
class Followed:
    """What is remembered of a job between looks."""

    faults: JobState = field(default_factory=JobState)
    stages: StageMemory = field(default_factory=StageMemory)
    fresh_ns: int = 0  # up to here looks have judged


@dataclass(frozen=True)
class Outcome:
    """What one look gave."""

    followed: Followed
    changed: list[Incident]
    judgement: Judgement
    context: Context
    wishes: tuple[Wish, ...] = ()  # what would settle the doubts in what was told


def take_look(
    store: Store,
    span: JobSpan,
    window: Window,
    known: Followed,
    who: Who,
    options: FollowOptions,
    *,
    is_told: bool = False,
) -> Outcome:
    """Look at a job: read, judge, and follow its incidents.

    A look whose incidents were told before, by another process, only learns from what it sees.
    """
    roster, silent, topology = who
    context = Context(
        job=span.job,
        attempt=span.attempt,
        window=window,
        fresh_ns=known.fresh_ns if window.start_ns < known.fresh_ns < window.end_ns else window.start_ns,
        roster=roster,
        topology=topology,
        silent=silent,
        period_ns=known.stages.period_ns,
    )
    is_explained = known.faults.names_a_part(options.tracking.clear_looks)
    judgement, stages = judge(store, context, known.stages, options.analyzer, is_explained=is_explained)
    followed = replace(known, stages=stages, fresh_ns=window.end_ns)
    if is_told:
        return Outcome(followed, [], judgement, context)
    ratio = step_time_ratio(stages.steps.kind.history, known.faults.since_ns)
    faults, changed = track(known.faults, judgement.findings, context, ratio, options.tracking)
    wishes = tuple(propose_wishes(faults.told, context))
    return Outcome(replace(followed, faults=faults), changed, judgement, context, wishes)
