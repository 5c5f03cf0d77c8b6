"""The clusters that are measured are what they are said to be, the same each time, and every figure is there."""

from benchmarks.recovery import SIZES, Size, draw_cluster, measure_size
from planner.allocation.cluster import check_cluster

TINY = Size(4, 40, None, 0.5, 0.1, 2)


def test_a_drawn_cluster_is_the_same_each_time_and_makes_sense() -> None:
    cluster = check_cluster(draw_cluster(SIZES[0]))
    assert cluster == draw_cluster(SIZES[0])
    assert (len(cluster.jobs), len(cluster.nodes)) == (6, 128)


def test_a_window_bounds_what_a_job_may_have() -> None:
    cluster = draw_cluster(Size(10, 100, 5, None, None, 1))
    assert all(max(job.throughput.counts) == len(job.nodes) + 5 for job in cluster.jobs)


def test_a_size_has_its_figures_with_floor_and_goal() -> None:
    said: list[str] = []
    figures = list(measure_size(TINY, quick=True, note=said.append))
    assert said == ["sharing nodes among jobs: 4 jobs x 40 nodes"]
    assert [figure.name.split(",")[0] for figure in figures] == [
        "solve",
        "solve",
        "nodes and alternatives",
        "all single next events",
    ]
    assert (figures[0].floor, figures[0].goal, figures[0].unit) == (0.5, 0.1, "s")
    assert all(figure.value > 0 for figure in figures)
