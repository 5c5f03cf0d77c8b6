"""Figures of scored plans: the claims first, then a line for each case, then the small ones in groups."""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.figures import Figure
from benchmarks.paths_score import Replanned, Score

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
            yield Figure(
                f"memory of planning, {flows:,} flows", most, "MB", None, None, False, "peak, beyond its input"
            )


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
        yield Figure(score.case.name, over(score.use, score), "x bound", None, None, False, describe(score))


def list_groups(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield the share of small cases at the optimum, by fabric and damage."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.case.fabric, score.case.damage), []).append(score)
    for (fabric, damage), mine in groups.items():
        equal = [score for score in mine if score.has_equal_flows]
        share = sum(score.is_optimal for score in equal) / len(equal)
        yield Figure(f"{fabric}, {damage}: at the optimum", share, "share", None, 0.99, True, _describe_group(mine))


def over(use: float, score: Score) -> float:
    """Return a use as a multiple of the bound; 1 where nothing has a road to choose."""
    return use / score.bound if score.bound else 1.0


def describe(score: Score) -> str:
    """Return the rest of what is known of a plan, in one line."""
    draws = sorted(score.ecmp)
    ecmp = f"ECMP {over(median(draws), score):.2f} (worst {over(draws[-1], score):.2f})"
    whole = "" if score.whole is None else f", MILP {over(score.whole, score):.3f}"
    lost = f", {score.unreachable} without a way" if score.unreachable else ""
    effort = f"{score.effort.wall_s:.2f} s, CPU {score.effort.cpu_s:.2f} s, {score.effort.peak_mb:.0f} MB"
    above = f"+{score.above:.0f} flows" if score.has_equal_flows else f"+{score.above:.2f} of the largest"
    beside = f"{ecmp}, greedy {over(score.greedy, score):.2f}{whole}"
    return f"{above}; {beside}; {effort}; bound {score.bound:.3f} by {score.bound_by}{lost}"


def _describe_group(scores: Sequence[Score]) -> str:
    solved = [score for score in scores if score.whole is not None]
    equal = sum(score.is_optimal for score in solved)
    worst = max(score.above for score in scores)
    ecmp = median(over(median(score.ecmp), score) for score in scores)
    greedy = median(over(score.greedy, score) for score in scores)
    plan = median(over(score.use, score) for score in scores)
    return (
        f"{len(scores)} plans, worst +{worst:.2g}; medians over the bound: {plan:.2f}, greedy {greedy:.2f}, "
        f"ECMP {ecmp:.2f}; "
        f"MILP finished {len(solved)}, as good as that {equal}"
    )


def _say_worst(scores: Sequence[Score]) -> str:
    worst = max(scores, key=lambda score: score.above)
    more = sum(score.above > 1 for score in scores)
    return f"{worst.case.name}, seed {worst.case.seed}" + (f"; {more} plans above by more than 1" if more else "")


def _span(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}"
