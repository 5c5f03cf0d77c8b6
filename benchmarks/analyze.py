"""The analyzer's claims of speed: from a closed window to its verdicts, from a thousand ranks to a million.

The windows are those of a sharded job in which one NIC sends slowly; it has to be named, and the same job without the
fault has to give silence. Seconds are of CPU, so that neighbours on the machine do not count; an idle machine with
two cores takes less time than that. Beside it PyTorch's flight-recorder analyser on the same hang, and the numeric
core alone, on the GPU as well where there is one.
"""

import math
from collections.abc import Iterator, Sequence

from analyzer.numeric.kernels import Device, find_device
from benchmarks.analyze_judging import Cost, in_own_process, measure_dumps, measure_scene
from benchmarks.analyze_numeric import NumericCost, measure_numeric
from benchmarks.analyze_peer import ABSENT, PeerCost
from benchmarks.analyze_window import HEALTHY, HUNG, RIGHT, SLOW, Scene
from benchmarks.figures import Figure, Note

_SIZES = (1_024, 4_096, 16_384, 65_536)
_MILLION = 1_000_000
_CLAIMS = {4_096: (1.0, 0.1), 65_536: (10.0, 2.0), _MILLION: (60.0, 10.0)}  # seconds: floor and goal
_EROICA = "EROICA reports 7 minutes"
_PEER_SIZES = (64, 256, 1_024)  # theirs takes minutes beyond
_DUMPS_GOAL_S = 1.0  # at 1,024 ranks; published analysers take 5 s and more
_CORE_SIZES = (65_536, _MILLION)
_GROWTH_FROM = 4_096  # below, what every window costs hides how costs grow
_LINEAR = (1.25, 1.05)  # exponent of the growth: with a logarithm from sorting, and almost without


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the analyzer's speed."""
    devices: tuple[Device, ...] = ("cuda",) if find_device() else ()
    note("there is a GPU: long arrays are computed on it" if devices else "no GPU here: CPU only")
    sizes = _SIZES[:1] if quick else _SIZES
    slow = [_noted(note, Scene(ranks, SLOW)) for ranks in sizes]
    others = [] if quick else [_noted(note, scene) for scene in _other_scenes()]
    pairs = [_noted_dumps(note, ranks) for ranks in (_PEER_SIZES[:1] if quick else _PEER_SIZES)]
    core = [_noted_core(note, ranks, devices) for ranks in (_CORE_SIZES[:1] if quick else _CORE_SIZES)]
    million = [cost for cost in others if cost.scene.ranks == _MILLION and cost.scene.trouble == SLOW]
    return (
        *(figure for cost in [*slow, *million] for figure in _speed(cost)),
        *_growth(slow),
        _right([*slow, *others]),
        *(figure for costs in core for figure in _core(costs)),
        *(figure for ours, theirs in pairs for figure in _beside(ours, theirs)),
    )


def is_right(cost: Cost) -> bool:
    """Return whether exactly the broken part was named, by any of its names, or nothing where nothing is broken."""
    right = RIGHT[cost.scene.trouble]
    return bool(cost.named) == bool(right) and set(cost.named) <= right


def growth_exponent(costs: Sequence[Cost]) -> float | None:
    """Return the slope of CPU seconds over ranks on logarithmic scales; None with fewer than two sizes.

    >>> scenes = [Scene(ranks, SLOW) for ranks in (4_096, 65_536)]
    >>> growth_exponent([Cost(scene, (), scene.ranks / 1e4, 0.0, 0.0, 0) for scene in scenes])
    1.0
    """
    large = [cost for cost in costs if cost.scene.ranks >= _GROWTH_FROM]
    if len(large) < 2:
        return None
    first, last = large[0], large[-1]
    return round(math.log(last.cpu_s / first.cpu_s) / math.log(last.scene.ranks / first.scene.ranks), 3)


def _other_scenes() -> list[Scene]:
    return [
        Scene(1_024, HUNG),
        Scene(4_096, HUNG),
        Scene(4_096, HEALTHY),
        Scene(65_536, HEALTHY),
        Scene(_MILLION, SLOW, only_statistics=True),
        Scene(_MILLION, HEALTHY, only_statistics=True),
    ]


def _noted(note: Note, scene: Scene) -> Cost:
    kind = "statistics" if scene.only_statistics else "window"
    note(f"making and judging a {kind} of {scene.ranks:,} ranks, {scene.trouble}")
    return measure_scene(scene)


def _noted_dumps(note: Note, ranks: int) -> tuple[Cost, PeerCost]:
    note(f"flight-recorder dumps of {ranks:,} ranks, one of which never comes")
    return measure_dumps(ranks)


def _speed(cost: Cost) -> Iterator[Figure]:
    ranks = cost.scene.ranks
    floor, goal = _CLAIMS.get(ranks, (None, None))
    what = "from statistics" if cost.scene.only_statistics else "closed window to verdicts"
    beside = f"{cost.wall_s:.2f} s of wall time, {cost.rows:,} rows, {cost.peak_mb:,.0f} MB at most, engine included"
    peer = f"; {_EROICA}" if ranks == _MILLION else ""
    yield Figure(f"{ranks:,} ranks, {what}", cost.cpu_s, "CPU s", floor, goal, False, beside + peer)


def _growth(costs: Sequence[Cost]) -> Iterator[Figure]:
    exponent = growth_exponent(costs)
    if exponent is not None:
        floor, goal = _LINEAR
        beside = f"exponent, {_GROWTH_FROM:,} to {costs[-1].scene.ranks:,} ranks; 1 is linear"
        yield Figure("growth with ranks", exponent, "", floor, goal, False, beside)


def _right(costs: Sequence[Cost]) -> Figure:
    wrong = [
        f"{cost.scene.ranks:,} {cost.scene.trouble}: {', '.join(cost.named) or 'silence'}"
        for cost in costs
        if not is_right(cost)
    ]
    share = 100.0 * (len(costs) - len(wrong)) / len(costs)
    return Figure("windows judged right", share, "%", 100, 100, True, "; ".join(wrong) or f"all {len(costs)}")


def _beside(ours: Cost, theirs: PeerCost) -> Iterator[Figure]:
    ranks = theirs.ranks
    goal = _DUMPS_GOAL_S if ranks == _PEER_SIZES[-1] else None
    said = f"says {', '.join(ours.named) or 'nothing'}"
    yield Figure(f"hang, dumps of {ranks:,} ranks: Lockstep", ours.cpu_s, "CPU s", None, goal, False, said)
    false = len(theirs.named - {ABSENT})
    said = f"{len(theirs.named)} ranks called missing, {false} of them wrongly"
    yield Figure(f"hang, dumps of {ranks:,} ranks: torchfrtrace", theirs.cpu_s, "CPU s", None, None, False, said)


def _noted_core(note: Note, ranks: int, devices: tuple[Device, ...]) -> list[NumericCost]:
    note(f"the numeric core alone at {ranks:,} ranks")
    return in_own_process(measure_numeric, ranks, devices)


def _core(costs: Sequence[NumericCost]) -> Iterator[Figure]:
    """Yield what the numeric core takes on numpy and, beside it, on the GPU; they have to say the same."""
    plain, *others = costs
    name = f"numeric core, {plain.ranks:,} ranks"
    where = "see the GPU below" if others else "no GPU here"
    yield Figure(f"{name}: numpy", plain.cpu_s, "CPU s", None, None, False, f"{plain.rows:,} rows; {where}")
    for cost in others:
        beside = f"{plain.wall_s / cost.wall_s:.1f} times as fast as numpy, copies included; figures of both "
        beside += "are the same" if cost.is_same else "DIFFER"
        yield Figure(f"{name}: {cost.device}", cost.wall_s, "s", None, None, False, beside)
