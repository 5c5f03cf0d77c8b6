"""Planned paths on real TCP and real Linux ECMP: against ports by chance, through a cut, for a gloo job, in a loop.

Needs root, for network namespaces. Rates are low, so that two cores are no bottleneck; what counts are shares of what
one flow gets that has the fabric to itself, and ratios within one run.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Note
from benchmarks.paths_cases import fabric_links
from tests.testbed.paths.cut_trials import CutOptions, run_cuts
from tests.testbed.paths.flows import plan_by_lockstep
from tests.testbed.paths.gloo_trials import GlooOptions, GlooRun, Reroute, reroute_gloo, run_gloo
from tests.testbed.paths.loop import LoopOptions, run_loop
from tests.testbed.paths.timeline import Timeline
from tests.testbed.paths.trials import CutTrial, PairedTrials, TrialOptions, eight_hosts, run_pairs, sixteen_hosts

_FLOOR_SHARE, _GOAL_SHARE = 0.95, 0.98
_FLOOR_RATIO, _GOAL_RATIO = 1.6, 3.0
_LOOPS = 5


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of planned paths on the testbed."""
    figures: list[Figure] = []
    for topology in (eight_hosts(),) if quick else (eight_hosts(), sixteen_hosts()):
        hosts = len(topology.hosts)
        pairs = 2 if quick else 20
        note(f"{pairs} pairs of trials on {hosts} hosts: random ports, planned ports")
        figures += describe_pairs(run_pairs(topology, plan_by_lockstep, TrialOptions(pairs=pairs)))
        note(f"cutting links under {hosts} hosts")
        between, most = fabric_links(topology), 1 if quick else 8
        links = between[:: max(1, len(between) // most)][:most]
        figures += describe_cuts(hosts, run_cuts(topology, plan_by_lockstep, links, CutOptions(TrialOptions())))
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            note("a gloo job, with ports by chance and planned")
            figures += describe_gloo(run_gloo(plan_by_lockstep, Path(folder), GlooOptions()))
            note("a gloo job through a slow link")
            figures += describe_reroute(reroute_gloo(plan_by_lockstep, Path(folder), "leaf0--spine0"))
            note(f"{_LOOPS} jobs around a slow link, by the analyzer's own verdict")
            loops = [LoopOptions(seed=seed) for seed in range(1, _LOOPS + 1)]
            figures += describe_loops([run_loop(Path(folder) / f"loop{o.seed}", o, note) for o in loops])
    return tuple(figures)


def describe_pairs(trials: PairedTrials) -> Iterator[Figure]:
    """Yield what paired trials say."""
    on = f"{trials.hosts} hosts, {len(trials.pairs)} pairs"
    beside = f"random ports: {trials.random_share:.3f}"
    yield Figure(
        f"{on}: aggregate over the ideal", trials.planned_share, "", _FLOOR_SHARE, _GOAL_SHARE, reference=beside
    )
    yield Figure(f"{on}: worst flow over that of random ports", trials.worst_ratio, "x", _FLOOR_RATIO, _GOAL_RATIO)
    yield Figure(f"{on}: worst flow over one alone", trials.worst_share, "")
    yield Figure(f"{on}: connections that kept to the plan", trials.enforced, "")


def describe_cuts(hosts: int, cuts: Sequence[tuple[CutTrial, CutTrial]]) -> Iterator[Figure]:
    """Yield what cuts say of a plan that follows, beside one that stays."""
    on, (static, dynamic) = f"{hosts} hosts, {len(cuts)} links cut", zip(*cuts, strict=True)
    beside = f"static plan: {median(trial.after for trial in static):.3f}"
    after = median(trial.after for trial in dynamic)
    yield Figure(f"{on}: pace over the ideal afterwards", after, "", _FLOOR_SHARE, _GOAL_SHARE, reference=beside)
    times = [trial.recovered_s for trial in dynamic if trial.recovered_s is not None]
    if times:
        beside = f"{len(times)} of {len(cuts)}; static: {sum(trial.recovered_s is not None for trial in static)}"
        yield Figure(f"{on}: seconds to recover", median(times), "s", higher_is_better=False, reference=beside)


def describe_gloo(runs: Sequence[GlooRun]) -> Iterator[Figure]:
    """Yield the step time of a gloo job with a plan, beside that by chance."""
    by_chance, planned = ([run.step_ms for run in runs if run.is_planned is kind] for kind in (False, True))
    beside = f"ports by chance: {median(by_chance):.0f} ms ({min(by_chance):.0f} to {max(by_chance):.0f})"
    yield Figure("gloo, 8 ranks: step time", median(planned), "ms", higher_is_better=False, reference=beside)


def describe_reroute(scenario: Reroute) -> Iterator[Figure]:
    """Yield the step times of a gloo job before, through and after a slow link."""
    before, through = f"before {scenario.healthy_ms:.0f} ms", f"through the slow link {scenario.degraded_ms:.0f} ms"
    beside = f"{before}, {through}; moved in {scenario.took_s:.2f} s"
    yield Figure("gloo around a slow link: step time", scenario.moved_ms, "ms", reference=beside)


def describe_loops(timelines: Sequence[Timeline]) -> Iterator[Figure]:
    """Yield how often a slow link was named and left, how soon, and what a step takes before, through and after."""
    closed = [each for each in timelines if each.is_closed]
    yield Figure(f"slow link, {len(timelines)} jobs: named, left and fast again", len(closed) / len(timelines), "")
    planned = [each.after_s(each.plan.made_ns) for each in closed if each.plan]
    back = [each.after_s(each.back.end_ns) for each in closed if each.back]
    if planned and back:
        beside = f"planned after {median(planned):.1f} s; slowest {max(back):.1f} s"
        yield Figure("slow link: seconds to the usual pace", median(back), "s", reference=beside)
        ratios = [(each.back_s or 0.0) / each.usual_s for each in closed]
        through = median((each.slow_s or 0.0) / each.usual_s for each in closed)
        beside = f"through the slow link {through:.2f}"
        yield Figure("slow link: step after over before", median(ratios), "x", reference=beside)
