"""Whatever was lost and whenever, each micro-batch of a step counts once, and all hold the same state."""

from dataclasses import dataclass, field

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


def test_the_lost_ones_micro_batches_go_to_survivors_who_keep_what_they_have_done() -> None:
    agreed = agree([report(0, done=(0, 3)), report(2, done=(2,))], 6, BUCKETS)
    assert (agreed.step, agreed.takers, agreed.buckets) == (4, (), (None,) * BUCKETS)
    assert agreed.shares == {0: (4,), 2: (1, 5)}


def test_a_bucket_that_one_survivor_has_reduced_is_given_to_the_others() -> None:
    reports = [report(0, reduced=(True, False, False)), report(2, reduced=(True, True, False))]
    agreed = agree(reports, 6, BUCKETS)
    assert agreed.buckets == (0, 2, None)
    assert sum(map(len, agreed.shares.values())) == 6, "the last bucket still lacks the lost one's share"


def test_nothing_is_done_again_when_somebody_has_all_buckets() -> None:
    agreed = agree([report(0, done=(0,)), report(2, done=(2,), reduced=(True,) * BUCKETS)], 6, BUCKETS)
    assert (agreed.buckets, agreed.shares) == ((2,) * BUCKETS, {0: (), 2: ()})


def test_who_has_only_the_optimizers_step_left_takes_part_in_the_next_one() -> None:
    agreed = agree([report(0, reduced=(True,) * BUCKETS, done=(0, 2)), report(1, step=5, done=(1,))], 4, BUCKETS)
    assert (agreed.step, agreed.behind, agreed.takers) == (5, frozenset({0}), ())
    assert agreed.shares == {0: (0, 2), 1: (3,)}, "what it has done was of the step before"


def test_replicas_that_cannot_both_be_right_stop_the_job() -> None:
    with pytest.raises(LockstepError, match=r"replicas are apart: \[\(0, 4, False\), \(1, 5, False\)\]"):
        agree([report(0), report(1, step=5)], 4, BUCKETS)


@dataclass(frozen=True)
class Nearest:
    seen: str
    reports: list[Report]
    giver: int
    step: int
    takers: tuple[int, ...] = field(default=())


@pytest.mark.parametrize(
    "case",
    [
        Nearest("a peer", [report(0, 9, "disk"), report(1, 4)], giver=1, step=4, takers=(0,)),
        Nearest("the newest", [report(0, 3, "memory"), report(1, 4, "disk")], giver=1, step=4, takers=(0,)),
        Nearest("memory", [report(0, 4, "disk"), report(1, 4, "memory")], giver=1, step=4, takers=(0,)),
        Nearest("the first", [report(0, 0, "nothing"), report(1, 0, "nothing")], giver=0, step=0, takers=(1,)),
    ],
    ids=lambda case: case.seen,
)
def test_state_comes_from_the_nearest_source(case: Nearest) -> None:
    agreed = agree(case.reports, 4, BUCKETS)
    assert (agreed.giver, agreed.step, agreed.takers) == (case.giver, case.step, case.takers)
