"""From a slow link to the usual pace again, by the analyzer's own verdict and without a restart."""

from pathlib import Path

import pytest

from tests.testbed.paths.loop import LoopOptions, loop_fabric, plan_job, ring_over_leaves, run_loop
from tests.testbed.paths.timeline import describe
from tests.testbed.workers.plan import Collective


def test_every_connection_of_the_ring_leads_to_the_next_leaf() -> None:
    leaf_of = {
        link.a.partition("/")[0]: int(link.b.removeprefix("leaf")) for link in loop_fabric(8).links if "/" in link.a
    }
    leaves = [leaf_of[host] for host in ring_over_leaves(8)]
    assert all((a + 1) % 4 == b for a, b in zip(leaves, [*leaves[1:], leaves[0]], strict=True))


def test_one_up_link_of_a_leaf_can_carry_what_two_do() -> None:
    rates = {link.id: link.gbps for link in loop_fabric(8).links}
    assert rates["leaf0--spine0"] == 2 * rates["h0/eth0--leaf0"]


def test_every_step_ends_with_its_only_operation() -> None:
    assert [isinstance(item, Collective) for item in plan_job(LoopOptions()).step] == [False, True]


@pytest.mark.slow
@pytest.mark.needs_root
def test_job_leaves_a_link_that_the_analyzer_names_and_is_fast_again(tmp_path: Path) -> None:
    told = run_loop(tmp_path / "loop", LoopOptions(), note=print)

    print(*describe(told), sep="\n")
    assert told.incident is not None
    assert told.plan is not None
    assert told.plan.weights[told.link.removeprefix("link:")] < 0.5
    assert told.moved >= 2
    assert told.slow_s is not None
    assert told.slow_s > 2 * told.usual_s
    assert told.is_closed


@pytest.mark.slow
@pytest.mark.needs_root
def test_link_that_still_carries_more_than_the_job_needs_is_not_left(tmp_path: Path) -> None:
    told = run_loop(tmp_path / "loop", LoopOptions(share=0.9, watch_s=20.0, after_s=0.0), note=print)

    print(*describe(told), sep="\n")
    assert (told.incident, told.plan, told.moved) == (None, None, 0)
