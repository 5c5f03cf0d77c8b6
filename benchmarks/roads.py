"""Planned paths on real TCP and real Linux ECMP: against ports by chance, through a cut, and for a gloo job.

Needs root, for network namespaces. Rates are low, so that two cores are no bottleneck; what counts are shares of what
one flow gets that has the fabric to itself, and ratios within one run.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Note
from lockstep.topology import Topology
from testbed.paths.cut_trials import CutOptions, run_cuts
from testbed.paths.gloo_reroute import Reroute, reroute_gloo
from testbed.paths.gloo_trials import GlooOptions, GlooRun, run_gloo
from testbed.paths.planners import plan_by_lockstep
from testbed.paths.results import CutTrial, PairedTrials
from testbed.paths.trials import TrialOptions, eight_hosts, run_pairs, sixteen_hosts

_FLOOR_SHARE, _GOAL_SHARE = 0.95, 0.98
_FLOOR_RATIO, _GOAL_RATIO = 1.6, 3.0


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of planned paths on the testbed."""
    figures: list[Figure] = []
    for topology in (eight_hosts(),) if quick else (eight_hosts(), sixteen_hosts()):
        hosts = len(topology.hosts)
        pairs = 2 if quick else 20
        note(f"{pairs} pairs of trials on {hosts} hosts: random ports, planned ports")
        figures += describe_pairs(run_pairs(topology, plan_by_lockstep, TrialOptions(pairs=pairs)))
        note(f"cutting links under {hosts} hosts")
        links = _links_to_cut(topology, 1 if quick else 8)
        figures += describe_cuts(hosts, run_cuts(topology, plan_by_lockstep, links, CutOptions(TrialOptions())))
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            note("a gloo job, with ports by chance and planned")
            figures += describe_gloo(run_gloo(plan_by_lockstep, Path(folder), GlooOptions()))
            note("a gloo job through a slow link")
            figures += describe_reroute(reroute_gloo(plan_by_lockstep, Path(folder), "leaf0--spine0"))
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


def describe_reroute(story: Reroute) -> Iterator[Figure]:
    """Yield the step times of a gloo job before, through and after a slow link."""
    steps = (
        story.step_ms[1 : story.degraded_from],
        story.step_ms[story.degraded_from + 1 : story.moved_from],
        story.step_ms[story.moved_from + 1 :],
    )
    before, through, after = (median(part) if part else float("nan") for part in steps)
    beside = f"before {before:.0f} ms, through the slow link {through:.0f} ms; moved in {story.took_s:.2f} s"
    yield Figure("gloo around a slow link: step time", after, "ms", higher_is_better=False, reference=beside)


def _links_to_cut(topology: Topology, most: int) -> list[str]:
    hosts = {host.id for host in topology.hosts}
    inside = [link.id for link in topology.links if link.a.partition("/")[0] not in hosts]
    return inside[:: max(1, len(inside) // most)][:most]
