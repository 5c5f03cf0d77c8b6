"""Pictures are drawn to scale, stay small, and escape every name."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from api.dashboard.pictures import draw_fabric, draw_heat, draw_sparkline, find_latest, find_slowest
from api.views.fabric import FabricView, LinkView, NodeView
from api.views.matrix import Cells, Lags, Matrix, Seat
from tests.api.dashboard.build import ATTACK, SHOWN


def matrix(ranks: int, ms: dict[tuple[int, int], float], host: str = "h0") -> Matrix:
    cells = Cells(src=tuple(a for a, _ in ms), dst=tuple(b for _, b in ms), ms=tuple(ms.values()))
    seats = tuple(Seat(rank=rank, host=host, gpu=rank % 8) for rank in range(ranks))
    return Matrix(job="train", attempt=0, from_ns=0, to_ns=1, ranks=seats, cells=cells, usual_ms=1.0)


def fabric(hosts: int, suspect: str = "") -> FabricView:
    nodes = [NodeView(id=f"h{n}", kind="host", suspects=("i1",) if suspect == f"h{n}" else ()) for n in range(hosts)]
    links = [
        LinkView(id=f"h{n}--leaf0", component="c", a=f"h{n}/eth0", b="leaf0", gbps=1, up=n != 1, planned_flows=0)
        for n in range(hosts)
    ]
    leaf = NodeView(id="leaf0", kind="switch", tier="leaf")
    return FabricView(routing="ecmp", nodes=(leaf, *nodes), links=tuple(links))


def test_curve_leaves_a_first_step_that_was_cut_short_below_the_picture() -> None:
    points = [(number, 0.01 if number == 0 else 1.0) for number in range(40)]
    drawn = draw_sparkline(points, [(20, 39)], "steps")
    assert "M0.0,40.0 " in drawn
    assert drawn.count('class="fault"') == 1


def test_single_point_is_no_curve() -> None:
    assert draw_sparkline([(1, 1.0)], [], "steps") == ""


@given(some.lists(some.floats(0, 1e6), min_size=2, max_size=300))
def test_curve_stays_inside_of_its_picture(seconds: list[float]) -> None:
    drawn = str(draw_sparkline(list(enumerate(seconds)), [], "steps"))
    places = [tuple(map(float, place.split(","))) for place in drawn.partition('d="M')[2].partition('"')[0].split()]
    assert all(0 <= x <= 200 and 0 <= y <= 40 for x, y in places)
    assert all(left[0] <= right[0] for left, right in pairwise(places))


def test_large_matrix_is_drawn_small_and_shows_the_worst_of_each_cell() -> None:
    usual = {(rank, (rank + 1) % 1024): 1.0 for rank in range(1024)}
    drawn = draw_heat(matrix(1024, usual | {(700, 701): 9.0}))
    assert drawn.count("<rect") <= 1 + 2 * 48
    assert drawn.count('class="heat-4"') == 1
    assert find_slowest(matrix(1024, usual | {(700, 701): 9.0}), 1)[0].source == "rank 700 (h0/4)"


def test_names_in_pictures_are_escaped() -> None:
    assert SHOWN in draw_heat(matrix(2, {(0, 1): 1.0}, host=ATTACK))
    assert "<script>" not in draw_sparkline([(0, 1.0), (1, 1.0)], [], ATTACK)


def test_suspect_and_dead_cables_are_told_apart() -> None:
    drawn = draw_fabric(fabric(4, suspect="h2"), {"h0--leaf0": 0.9})
    assert 'class="cable line-3"' in drawn
    assert 'class="cable down"' in drawn
    assert drawn.count('class="node suspect"') == 1


def test_many_hosts_share_a_box_and_the_suspect_has_its_own() -> None:
    drawn = draw_fabric(fabric(500, suspect="h77"), {})
    assert drawn.count("<rect") == 3  # the leaf, the suspect, all others
    assert "499 hosts" in drawn


def test_latest_ranks_come_first_and_silent_ones_not_at_all() -> None:
    seats = tuple(Seat(rank=rank, host="h0") for rank in range(3))
    lags = Lags(
        job="j", attempt=0, ranks=seats, times_ns=(0, 1), column_ns=1, lag_ms=((1.0, None), (None, None), (5.0, 7.0))
    )
    found = find_latest(lags, 5)
    assert [(each.rank, each.median_ms, each.most_ms) for each in found] == [(2, 6.0, 7.0), (0, 1.0, 1.0)]
    assert found[0].over_others_ms == 2.5
