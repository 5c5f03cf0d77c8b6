"""An unmodified torch job takes planned ways, and is moved around a slow link while it runs."""

from pathlib import Path

import pytest

from tests.testbed.paths.gloo_reroute import Reroute, reroute_gloo
from tests.testbed.paths.gloo_trials import GlooOptions, ring_across, ring_flows, run_gloo
from tests.testbed.paths.planners import plan_by_lockstep


def test_neighbours_in_the_ring_are_on_different_leaves() -> None:
    ring = ring_across([f"h{number}" for number in range(8)])

    sides = [int(host[1:]) // 4 for host in ring]
    assert all(a != b for a, b in zip(sides, [*sides[1:], sides[0]], strict=True))


def test_ring_sends_to_the_rank_before() -> None:
    flows = ring_flows([("h0", "eth0"), ("h4", "eth0"), ("h1", "eth0")])

    assert [(flow.src[0], flow.dst[0]) for flow in flows] == [("h0", "h1"), ("h4", "h0"), ("h1", "h4")]


def test_times_are_told_apart_by_what_had_happened_before_a_step_began() -> None:
    told = Reroute("leaf0--spine0", (9, 9, 1, 1, 1, 5, 8, 8, 8, 6, 2, 2), 6, 10, moved=2, took_s=0.1)

    assert (told.healthy_ms, told.degraded_ms, told.moved_ms) == (1, 8, 2)


@pytest.mark.slow
@pytest.mark.needs_root
def test_connections_of_an_unmodified_job_get_planned_ports(tmp_path: Path) -> None:
    runs = run_gloo(plan_by_lockstep, tmp_path, GlooOptions(steps=3, skipped=1, bytes=1 << 18, runs=1))

    planned, plain = sorted(runs, key=lambda run: not run.is_planned)
    assert planned.enforced >= 8  # a pair of ranks each, and some meet at the store besides
    assert planned.refused == 0
    assert (plain.enforced, plain.refused) == (0, 0)


@pytest.mark.slow
@pytest.mark.needs_root
def test_running_job_is_moved_around_a_slow_link_without_a_restart(tmp_path: Path) -> None:
    told = reroute_gloo(plan_by_lockstep, tmp_path, "leaf0--spine1")

    assert told.moved >= 1
    assert told.degraded_ms > 2 * told.healthy_ms
    assert told.moved_ms < told.degraded_ms / 2
