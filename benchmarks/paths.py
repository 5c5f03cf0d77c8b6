"""The path planner's claims: plans at the integer optimum, quickly, and around a lost link at once.

Large fabrics are measured one by one, each in a process of its own so that its peak memory is its own, beside random
choice (ECMP) and greedy choice. Small ones are many, so that the share at the optimum means something, and beside the
LP and, where it finishes, the MILP. Every plan's paths are checked before it is scored.

Planned paths on real TCP and real Linux ECMP: against ports by chance, through a cut, for a gloo job, in a loop.

Needs root, for network namespaces. Rates are low, so that two cores are no bottleneck; what counts are shares of what
one flow gets that has the fabric to itself, and ratios within one run.
"""

from collections.abc import Iterator, Sequence
from itertools import count, product
from statistics import median

from benchmarks.figures import Figure, Note, in_own_process, scratch
from benchmarks.paths_cases import (
    DAMAGES,
    DATA,
    EQUAL,
    FIRST_SEED,
    LARGE,
    NAMESAKES,
    ONE_PATH,
    SMALL,
    TRAFFIC,
    Case,
    fabric_links,
    has_public_data,
    measure_c4p,
)
from benchmarks.paths_score import Replanned, Score, replan_case, score_case
from tests.testbed.paths.cut_trials import CutOptions, run_cuts
from tests.testbed.paths.flows import plan_by_lockstep
from tests.testbed.paths.gloo_trials import GlooOptions, GlooRun, Reroute, reroute_gloo, run_gloo
from tests.testbed.paths.loop import LoopOptions, run_loop
from tests.testbed.paths.timeline import Timeline
from tests.testbed.paths.trials import CutTrial, PairedTrials, TrialOptions, eight_hosts, run_pairs, sixteen_hosts

_SECONDS = {8_192: (2.0, None), 65_536: (None, 5.0)}  # floor and goal by flows
_REPLAN_S = 0.1


def claim_optimum(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield how near to the optimum plans are, over all cases."""
    equal = [score for score in scores if score.has_equal_flows]
    worst = max(equal, key=lambda score: score.above)
    name = "worst plan, flows above the integer optimum"
    yield Figure(name, worst.above, "flows", 1, 0, False, _say_worst(equal))
    proven = sum(score.above == 0 for score in equal)
    by_milp = sum(score.is_optimal for score in equal) - proven
    beside = f"{len(equal)} plans of equal flows; {proven} at the ceiling of the bound, {by_milp} more by MILP"
    yield Figure("plans at the integer optimum", (proven + by_milp) / len(equal), "share", None, 0.99, True, beside)
    others = [score for score in scores if not score.has_equal_flows]
    if others:
        shares = [score.above for score in others]
        beside = f"{len(others)} plans, median {median(shares):.2f}; {_say_worst(others)}"
        yield Figure("worst plan of unequal flows above the LP", max(shares), "largest", 1, None, False, beside)


def claim_seconds(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield how long the slowest plan of each number of flows took."""
    for flows, (floor, goal) in _SECONDS.items():
        of_these = [score for score in scores if score.case.flows == flows]
        if of_these:
            slowest = max(of_these, key=lambda score: score.effort.wall_s)
            typical = median(score.effort.wall_s for score in of_these)
            beside = (
                f"median {typical:.2f} s of {len(of_these)}; CPU {slowest.effort.cpu_s:.2f} s; {slowest.case.name}"
            )
            yield Figure(f"slowest plan, {flows:,} flows", slowest.effort.wall_s, "s", floor, goal, False, beside)
            most = max(score.effort.peak_mb for score in of_these)
            yield Figure(f"memory of planning, {flows:,} flows", most, "MB", reference="peak, beyond its input")


def claim_replanning(replanned: Sequence[Replanned]) -> Iterator[Figure]:
    """Yield how long it takes to plan around one lost link, by fabric."""
    for name in dict.fromkeys(one.case.name for one in replanned):
        mine = [one for one in replanned if one.case.name == name]
        seconds = [one.wall_s for one in mine]
        beside = (
            f"{len(mine)} links, median {median(seconds):.3f} s, of which the link's removal from the network "
            f"{median(m.without_s for m in mine):.3f} s; "
            f"must move {_span([m.must_move for m in mine])}, moved besides {_span([m.may_move for m in mine])}, "
            f"above the optimum by at most {max(m.above for m in mine):.0f}"
        )
        yield Figure(f"a link lost: {name}", max(seconds), "s", None, _REPLAN_S, False, beside)


def list_cases(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield the highest use of each plan over the bound, with everything that it is held against."""
    for score in scores:
        yield Figure(score.case.name, over(score.use, score), "x bound", reference=describe(score))


def over(use: float, score: Score) -> float:
    """Return a use as a multiple of the bound; 1 where nothing has a path to choose."""
    return use / score.bound if score.bound else 1.0


def describe(score: Score) -> str:
    """Return the rest of what is known of a plan, in one line."""
    draws = sorted(score.ecmp)
    ecmp = f"ECMP {over(median(draws), score):.2f} (worst {over(draws[-1], score):.2f})"
    whole = "" if score.whole is None else f", MILP {over(score.whole, score):.3f}"
    lost = f", {score.unreachable} without a path" if score.unreachable else ""
    effort = f"{score.effort.wall_s:.2f} s, CPU {score.effort.cpu_s:.2f} s, {score.effort.peak_mb:.0f} MB"
    above = f"+{score.above:.0f} flows" if score.has_equal_flows else f"+{score.above:.2f} of the largest"
    beside = f"{ecmp}, greedy {over(score.greedy, score):.2f}{whole}"
    return f"{above}; {beside}; {effort}; bound {score.bound:.3f} by {score.bound_by}{lost}"


def _say_worst(scores: Sequence[Score]) -> str:
    worst = max(scores, key=lambda score: score.above)
    more = sum(score.above > 1 for score in scores)
    return f"{worst.case.name}, seed {worst.case.seed}" + (f"; {more} plans above by more than 1" if more else "")


def _span(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}"


_FLOWS = (1_024, 8_192, 65_536)
_SMALL_FLOWS = 512
_SMALL_SEEDS = 2
_MILP_EVERY = 16  # small cases, whether or not anything is left to prove: the MILP takes seconds each
_LINKS_LOST = 10
_REPLAN_FLOWS = 8_192


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the planner."""
    large, replanned = [], []
    for case in quick_cases() if quick else [*large_cases(), *_public_cases(note)]:
        note(f"planning {case.name}")
        large.append(in_own_process(score_case, case))
    note("planning many small cases")
    small = [score_case(case, milp_always=case.seed % _MILP_EVERY == 0) for case in small_cases(quick)]
    for case in replan_cases(quick):
        note(f"losing links of {case.name}")
        replanned += in_own_process(replan_case, case, _LINKS_LOST)
    return (
        *claim_optimum([*large, *small]),
        *claim_seconds(large),
        *claim_replanning(replanned),
        *measure_c4p(quick, note),
        *list_cases(large),
    )


def large_cases() -> list[Case]:
    """Return each large fabric with each damage and number of flows; traffic takes turns, so that all is met."""
    seeds, kinds = count(FIRST_SEED), list(TRAFFIC)
    combinations = product(LARGE, _FLOWS, DAMAGES)
    return [
        Case(fabric, damage, kinds[(number + number // len(DAMAGES)) % len(kinds)], flows, next(seeds))
        for number, (fabric, flows, damage) in enumerate(combinations)
    ]


def quick_cases() -> list[Case]:
    """Return a few cases that show whether anything is amiss."""
    return [
        Case("k=16", "intact", "rings", 8_192, FIRST_SEED),
        Case("rails 64 x 32", "4 % of links missing", "random", 8_192, FIRST_SEED + 1),
        Case("planes 2 x 32 x 16", "4 % of links slow", "four sizes", 1_024, FIRST_SEED + 2),
    ]


def small_cases(quick: bool) -> list[Case]:
    """Return small fabrics with each damage and kind of traffic, several times."""
    fabrics, seeds = (SMALL[:1], 1) if quick else (SMALL, _SMALL_SEEDS)
    kinds = (*EQUAL, "four sizes")
    combinations = product(fabrics, DAMAGES, kinds, range(seeds))
    return [
        Case(fabric, damage, traffic, _SMALL_FLOWS, FIRST_SEED + number)
        for number, (fabric, damage, traffic, _) in enumerate(combinations)
    ]


def replan_cases(quick: bool) -> list[Case]:
    """Return the plans that lose a link."""
    broken = [Case("k=16", "4 % of links missing", "random", _REPLAN_FLOWS, FIRST_SEED + len(LARGE))]
    whole = [Case(fabric, "intact", "rings", _REPLAN_FLOWS, FIRST_SEED + at) for at, fabric in enumerate(LARGE)]
    return whole[:1] if quick else whole + broken


def _public_cases(note: Note) -> Iterator[Case]:
    if not has_public_data():
        note(f"the Lingjun topology is left out: set {DATA} to the folder of third-party data")
        return
    yield Case(ONE_PATH, "intact", "rings", 1_024, FIRST_SEED)
    for at, (traffic, flows) in enumerate(product(("rings", "jobs", "random"), _FLOWS[:2])):
        yield Case(NAMESAKES, "intact", traffic, flows, FIRST_SEED + at)
    yield Case(NAMESAKES, "4 % of links missing", "rings", 8_192, FIRST_SEED)


_FLOOR_SHARE, _GOAL_SHARE = 0.95, 0.98
_FLOOR_RATIO, _GOAL_RATIO = 1.6, 3.0
_LOOPS = 5


def measure_live(quick: bool, note: Note) -> tuple[Figure, ...]:
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
        with scratch() as folder:
            note("a gloo job, with ports by chance and planned")
            figures += describe_gloo(run_gloo(plan_by_lockstep, folder, GlooOptions()))
            note("a gloo job through a slow link")
            figures += describe_reroute(reroute_gloo(plan_by_lockstep, folder, "leaf0--spine0"))
            note(f"{_LOOPS} jobs around a slow link, by the analyzer's own verdict")
            loops = [LoopOptions(seed=seed) for seed in range(1, _LOOPS + 1)]
            figures += describe_loops([run_loop(folder / f"loop{o.seed}", o, note) for o in loops])
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
