"""Ranks have the groups that Megatron would give them, and a job that cannot be is refused with all complaints."""

from dataclasses import replace

import pytest

from lockstep.errors import BadInput
from tests.testbed.workers.plan import Collective, Compute, Hop, Kind, Layout
from tests.testbed_checks.workers.jobs import plan_job


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("tp", {(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)}),
        ("dp", {(0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11)}),
        ("pp", {(0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11)}),
        ("world", {tuple(range(12))}),
    ],
)
def test_every_rank_is_in_one_group_of_each_kind(kind: Kind, groups: set[tuple[int, ...]]) -> None:
    layout = Layout(tp=2, dp=3, pp=2)
    found = [layout.group_of(kind, rank) for rank in range(layout.ranks)]

    assert set(found) == groups
    assert all(rank in group for rank, group in enumerate(found))


def test_communicators_differ_by_job_attempt_kind_and_group() -> None:
    plan = plan_job(4)
    others = [replace(plan, job="other"), replace(plan, attempt=1)]
    ids = [each.comm_id("dp", (0, 1)) for each in (plan, *others)]
    ids += [plan.comm_id("tp", (0, 1)), plan.comm_id("dp", (0, 2))]

    assert len(set(ids)) == 5
    assert all(0 < each < 1 << 64 for each in ids)


def test_local_ranks_count_on_each_host() -> None:
    plan = plan_job(6, per_host=3)

    assert [plan.local_rank(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]


def test_stages_may_differ_and_others_do_what_all_do() -> None:
    last = (Compute(9), Hop("Recv", -1, 8))
    plan = plan_job(2, (Compute(1), Hop("Send", 1, 8)), layout=Layout(pp=2), stage_steps={1: last})

    assert plan.items_of(1) == last
    assert plan.items_of(0)[0] == Compute(1)
    assert plan.kinds_of(0) == ("world", "pp")


def test_impossible_job_is_refused_with_all_that_is_wrong() -> None:
    with pytest.raises(BadInput) as refusal:
        plan_job(2, (Compute(-1), Collective("dp", "AllReduce", 0, channels=40)), layout=Layout(dp=3), nics=())

    for complaint in (
        "3 ranks in the layout, but hosts for 2",
        "no NIC",
        "compute takes time",
        "without bytes",
        "1 to 32",
    ):
        assert complaint in str(refusal.value)


def test_stage_that_does_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="a stage that does nothing"):
        plan_job(2, layout=Layout(pp=2), stage_steps={1: ()})
