"""A path plan in sentences: how good it is, what limits it, what moved and why, and whom it cannot help."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from planner.paths.planning import PathPlan
from planner.paths.roads import UNPLACED, find_use

_FEW = 5  # names in a sentence; the rest is counted


def explain(plan: PathPlan, before: PathPlan | None = None) -> list[str]:
    """Return what an SRE would ask, answered."""
    return [
        *_say_what(plan),
        *_say_how_good(plan),
        *_say_what_limits(plan),
        *_say_moves(plan, before),
        *_say_lost(plan),
    ]


def _say_what(plan: PathPlan) -> Iterator[str]:
    inside = int((plan.height == 0).sum())
    tops = len(np.unique(np.stack([plan.height, plan.top])[:, plan.top != UNPLACED], axis=1).T)
    yield f"{len(plan.flows):,} flows, {inside:,} of them inside one leaf; the others go over {tops:,} switches"
    dead = sorted({plan.network.link_of(lane) for lane in np.flatnonzero(plan.network.gbps <= 0).tolist()})
    if dead:
        yield f"nothing goes over {_list(dead)}"
    routing = plan.network.topology.routing
    if routing != "ecmp":
        yield (
            f"this fabric routes by itself ({routing}): there is no port to choose, so these roads are a picture of "
            "an even load and no instruction; what can be planned here is which hosts a job gets"
        )


def _say_how_good(plan: PathPlan) -> Iterator[str]:
    highest, bound = plan.highest_use, plan.bound
    if highest <= 0:
        yield "no link between switches is used"
    elif highest <= bound * (1 + 1e-9):
        yield f"the fullest link is used to {_share(highest)}, and no plan can do better"
    else:
        yield (
            f"the fullest link is used to {_share(highest)}; flows that could be split at will would need "
            f"{_share(bound)} at least, whole ones often a little more"
        )
    if highest > 1 + 1e-9:
        yield f"that is more than it carries: flows slow down to {1 / highest:.0%} of what they ask for"


def _say_what_limits(plan: PathPlan) -> Iterator[str]:
    use = np.where(plan.network.fabric, find_use(plan.network, plan.load), 0.0)
    if use.max(initial=0.0) <= 0:
        return
    fullest = np.flatnonzero(use >= use.max() * (1 - 1e-9))
    names = [plan.network.name_lane(lane) for lane in fullest.tolist()]
    yield f"the fullest {'link is' if len(names) == 1 else f'{len(names):,} links are'} {_list(names)}"


def _say_moves(plan: PathPlan, before: PathPlan | None) -> Iterator[str]:
    if before is None:
        return
    kept = len(plan.flows) - plan.must_move - plan.may_move
    yield (
        f"{plan.must_move:,} flows had to move because their road is gone, {plan.may_move:,} moved to make room, "
        f"{kept:,} stay or are new; the fullest link was used to {_share(before.highest_use)} before"
    )


def _say_lost(plan: PathPlan) -> Iterator[str]:
    lost = plan.unreachable
    if not lost:
        return
    ends = Counter(
        plan.network.name_lane(int(lane)).split(" -> ")[side]
        for flow in np.flatnonzero(plan.height < 0).tolist()
        for side, lane in enumerate(plan.flows.ends[flow])
    )
    most, times = ends.most_common(1)[0]
    yield f"{len(lost):,} flows have no way at all: {_list(lost)}; {most} is an end of {times:,} of them"


def _share(use: float) -> str:
    return "beyond measure" if use == float("inf") else f"{use:.1%}"


def _list(names: list[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more:,} more" if more > 0 else "")
