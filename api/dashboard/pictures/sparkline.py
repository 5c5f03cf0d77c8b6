"""A curve of step times as small as a word, with the times of faults behind it."""

from collections.abc import Sequence

from markupsafe import Markup

Points = Sequence[tuple[int, float]]  # moment in nanoseconds, seconds
Stretch = tuple[int, int]  # from, to

_WIDE, _HIGH = 200.0, 40.0
_POINTS = 120  # more are not seen at this size
_FLOOR = 0.75  # of the shortest: a tenth more is seen, and noise stays small
_STRAY = 20  # of so many points one may lie below the picture: first steps are often cut short
_SPARK = Markup(
    '<svg class="spark" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" aria-label="{}">'
    '{}<path d="M{}"/></svg>'
)
_BAND = Markup('<rect class="fault" x="{:.1f}" y="0" width="{:.1f}" height="{:g}"/>')


def draw_sparkline(points: Points, faults: Sequence[Stretch], label: str) -> Markup:
    """Return an SVG of a curve; of many points the longest of each stretch stays."""
    if len(points) < 2:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    span = max(last - first, 1)
    ordered = sorted(seconds for _, seconds in points)
    low, high = ordered[len(ordered) // _STRAY] * _FLOOR, ordered[-1] * 1.05 or 1.0
    every = -(-len(points) // _POINTS)
    kept = [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]
    curve = " ".join(
        f"{_WIDE * (ts - first) / span:.1f},{_HIGH * (high - max(value, low)) / (high - low):.1f}"
        for ts, value in kept
    )
    bands = [
        _BAND.format(left, max(right - left, 1), _HIGH)
        for left, right in (_clip(fault, first, span) for fault in faults)
        if right > 0 and left < _WIDE
    ]
    return _SPARK.format(_WIDE, _HIGH, label, Markup("").join(bands), curve)


def _clip(fault: Stretch, first: int, span: int) -> tuple[float, float]:
    left, right = (_WIDE * (moment - first) / span for moment in fault)
    return max(left, 0.0), min(right, _WIDE)
