"""Drawn clusters are what they are said to be; the same history of faults hits every system, and each part helps."""

from dataclasses import replace

import pytest

from benchmarks.recovery import SIZES, Size, draw_cluster, measure_size
from benchmarks.recovery_fleet import (
    ABLATION,
    HOT_SPARES,
    IN_JOB,
    LOCKSTEP,
    RESTART,
    TRACE_A,
    TRACE_B,
    compare,
    draw_faults,
    simulate,
    start_cluster,
)
from planner.allocation.cluster import check_cluster

SHORT = replace(TRACE_B, days=2.0)
CALM = replace(SHORT, lost=0.0, others=0.0)


def test_a_drawn_cluster_is_the_same_each_time_and_makes_sense() -> None:
    cluster = check_cluster(draw_cluster(SIZES[0]))
    assert cluster == draw_cluster(SIZES[0])
    assert (len(cluster.jobs), len(cluster.nodes)) == (6, 128)
    bounded = draw_cluster(Size(10, 100, 5, None, None, 1))
    assert all(max(job.throughput.counts) == len(job.nodes) + 5 for job in bounded.jobs)


def test_a_size_has_its_figures_with_floor_and_goal() -> None:
    said: list[str] = []
    figures = list(measure_size(Size(4, 40, None, 0.5, 0.1, 2), quick=True, note=said.append))
    assert said == ["sharing nodes among jobs: 4 jobs x 40 nodes"]
    names = [figure.name.split(",")[0] for figure in figures if figure.value > 0]
    assert names == ["solve", "solve", "nodes and alternatives", "all single next events"]
    assert (figures[0].floor, figures[0].goal, figures[0].unit) == (0.5, 0.1, "s")


def test_without_faults_every_way_does_the_same_work_but_hot_spares_cost_their_hosts() -> None:
    work = simulate(RESTART, CALM, 1)
    for system in (LOCKSTEP, IN_JOB, *ABLATION):
        assert simulate(system, CALM, 1) == pytest.approx(work), system.name
    assert simulate(HOT_SPARES, CALM, 1) < work


def test_as_many_faults_come_as_the_trace_has_by_the_seed_alone() -> None:
    assert draw_faults(SHORT, 3) == draw_faults(SHORT, 3) != draw_faults(SHORT, 4)
    drawn = sum(len(draw_faults(TRACE_B, seed)) for seed in range(200))
    assert drawn / 200 == pytest.approx(106, rel=0.03)
    lost = sum(fault.kind == "lost" for seed in range(200) for fault in draw_faults(TRACE_A, seed))
    assert lost / 200 == pytest.approx(10, rel=0.1)


def test_work_lost_to_faults_grows_with_their_rate() -> None:
    more = replace(SHORT, lost=SHORT.lost * 2, others=SHORT.others * 2)
    assert simulate(RESTART, more, 1) < simulate(RESTART, SHORT, 1) < simulate(RESTART, CALM, 1)


def test_each_part_is_worth_something_and_all_together_most() -> None:
    ratios = {system.name: ratio for system, ratio, _ in compare((*ABLATION, IN_JOB), SHORT, range(1, 6))}
    together = ratios.pop(IN_JOB.name)
    assert min(ratios.values()) > 1.0
    assert together > max(ratios.values())


def test_jobs_hold_every_host_but_the_spares_and_none_more_than_one_and_a_half_equal_shares() -> None:
    assert sum(len(job.nodes) for job in start_cluster(HOT_SPARES, SHORT, 1).jobs) == SHORT.hosts - 1
    assert max(len(job.nodes) for job in start_cluster(LOCKSTEP, SHORT, 1).jobs) == 4
