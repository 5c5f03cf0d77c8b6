"""Whatever was lost and whenever, each micro-batch of a step counts once, and all hold the same state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.training.agreement import Report, Source, agree, share_micro_batches

BUCKETS = 3


def report(replica: int, step: int = 4, source: Source = "live", **changes: object) -> Report:
    return Report.model_validate(
        {"replica": replica, "step": step, "source": source, "reduced": (False,) * BUCKETS, **changes}
    )


@given(st.integers(1, 40), st.sets(st.integers(0, 9), min_size=1), st.data())
def test_every_micro_batch_is_shared_out_once_and_nobody_does_two_more_than_another(
    count: int, replicas: set[int], data: st.DataObject
) -> None:
    owners = data.draw(st.lists(st.sampled_from([None, *sorted(replicas)]), min_size=count, max_size=count))
    done = {replica: [n for n, owner in enumerate(owners) if owner == replica] for replica in replicas}
    shares = share_micro_batches(count, done)

    given = [number for share in shares.values() for number in share]
    assert sorted(given) == [number for number, owner in enumerate(owners) if owner is None]
    loads = {replica: len(done[replica]) + len(shares[replica]) for replica in replicas}
    busy = max(loads[replica] for replica in replicas if shares[replica]) if given else 0
    assert all(load >= busy - 1 for load in loads.values())


ALL = (True,) * BUCKETS


@pytest.mark.parametrize(
    ("reports", "buckets", "shares"),
    [
        # survivors keep what they have done
        ([report(0, done=(0, 3)), report(2, done=(2,))], (None,) * BUCKETS, {0: (4,), 2: (1, 5)}),
        # a bucket that one of them has reduced is given to the others; the last still lacks the lost one's share
        (
            [report(0, reduced=(True, False, False)), report(2, reduced=(True, True, False))],
            (0, 2, None),
            {0: (0, 2, 4), 2: (1, 3, 5)},
        ),
        # nothing is done again when somebody has all
        ([report(0, done=(0,)), report(2, done=(2,), reduced=ALL)], (2,) * BUCKETS, {0: (), 2: ()}),
    ],
)
def test_the_lost_ones_share_of_a_step_is_done_by_survivors_where_nobody_has_reduced_it(
    reports: list[Report], buckets: tuple[int | None, ...], shares: dict[int, tuple[int, ...]]
) -> None:
    agreed = agree(reports, 6, BUCKETS)
    assert (agreed.step, agreed.takers, agreed.buckets, agreed.shares) == (4, (), buckets, shares)


def test_who_has_only_the_optimizers_step_left_takes_part_in_the_next_one() -> None:
    agreed = agree([report(0, reduced=(True,) * BUCKETS, done=(0, 2)), report(1, step=5, done=(1,))], 4, BUCKETS)
    assert (agreed.step, agreed.behind, agreed.takers) == (5, frozenset({0}), ())
    assert agreed.shares == {0: (0, 2), 1: (3,)}, "what it has done was of the step before"


def test_replicas_that_cannot_both_be_right_stop_the_job() -> None:
    with pytest.raises(LockstepError, match=r"replicas are apart: \[\(0, 4, False\), \(1, 5, False\)\]"):
        agree([report(0), report(1, step=5)], 4, BUCKETS)


@pytest.mark.parametrize(
    ("sources", "giver", "step"),
    [
        ([(9, "disk"), (4, "live")], 1, 4),  # a peer
        ([(3, "memory"), (4, "disk")], 1, 4),  # the newest
        ([(4, "disk"), (4, "memory")], 1, 4),  # memory
        ([(0, "nothing"), (0, "nothing")], 0, 0),  # the first
    ],
)
def test_state_comes_from_the_nearest_source(sources: list[tuple[int, Source]], giver: int, step: int) -> None:
    agreed = agree([report(replica, *each) for replica, each in enumerate(sources)], 4, BUCKETS)
    assert (agreed.giver, agreed.step, agreed.takers) == (giver, step, (1 - giver,))
