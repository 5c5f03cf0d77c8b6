"""Without faults nothing differs; with faults the same history hits everybody, and each part is worth something."""

from dataclasses import replace

import pytest

from benchmarks.recovery_fleet import (
    ABLATION,
    HOT_SPARES,
    IN_JOB,
    LOCKSTEP,
    RESTART,
    TRACE_A,
    TRACE_B,
    Faults,
    System,
    compare,
    draw_faults,
    simulate,
    start_cluster,
)

SHORT = replace(TRACE_B, days=2.0)
CALM = replace(SHORT, lost=0.0, others=0.0)


def work(system: System, faults: Faults = SHORT, seed: int = 1) -> float:
    return simulate(system, faults, seed)


@pytest.mark.parametrize("system", [RESTART, LOCKSTEP, IN_JOB, *ABLATION])
def test_without_faults_every_way_does_the_same_work(system: System) -> None:
    assert work(system, CALM) == pytest.approx(work(RESTART, CALM))


def test_hot_spares_cost_their_hosts_when_nothing_happens() -> None:
    assert work(HOT_SPARES, CALM) < work(RESTART, CALM)


def test_history_of_faults_depends_on_the_seed_alone() -> None:
    assert draw_faults(SHORT, 3) == draw_faults(SHORT, 3)
    assert draw_faults(SHORT, 3) != draw_faults(SHORT, 4)


def test_as_many_faults_come_as_the_trace_has() -> None:
    counts = [len(draw_faults(TRACE_B, seed)) for seed in range(200)]
    assert sum(counts) / len(counts) == pytest.approx(106, rel=0.03)
    lost = [sum(fault.kind == "lost" for fault in draw_faults(TRACE_A, seed)) for seed in range(200)]
    assert sum(lost) / len(lost) == pytest.approx(10, rel=0.1)


def test_work_lost_to_faults_grows_with_their_rate() -> None:
    more = replace(SHORT, lost=SHORT.lost * 2, others=SHORT.others * 2)
    assert work(RESTART, more) < work(RESTART) < work(RESTART, CALM)


def test_each_part_is_worth_something_and_all_together_most() -> None:
    seeds = range(1, 6)
    ratios = {system.name: ratio for system, ratio, _ in compare((*ABLATION, IN_JOB), SHORT, seeds)}
    together = ratios.pop(IN_JOB.name)
    assert min(ratios.values()) > 1.0
    assert together > max(ratios.values())


def test_jobs_hold_every_host_but_the_spares() -> None:
    held = sum(len(job.nodes) for job in start_cluster(HOT_SPARES, SHORT, 1).jobs)
    assert held == SHORT.hosts - 1


def test_no_job_holds_more_than_one_and_a_half_equal_shares() -> None:
    assert max(len(job.nodes) for job in start_cluster(LOCKSTEP, SHORT, 1).jobs) == 4
