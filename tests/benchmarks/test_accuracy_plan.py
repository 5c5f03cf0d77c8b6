"""The table is made from seeds that nobody tunes on, of every family, and hard cases are told from strong ones."""

import pytest

from benchmarks.accuracy_plan import FIRST_SEED, HARD, Case, family_names, group_of, plan_cases
from lockstep.sim.library import find_story, list_stories


def test_every_family_has_twenty_runs_at_its_own_size_and_fewer_at_larger_ones() -> None:
    runs = {(size, family): 0 for size in (64, 512, 4_096) for family in family_names()}
    families = {story.name: story.family for story in list_stories()}
    for case in plan_cases(full=False):
        runs[64 if case.ranks < 512 else case.ranks, families[case.story]] += 1
    assert {runs[64, family] for family in family_names()} == {20}
    assert runs[512, "nic-tx"] == 5
    assert runs[4_096, "nic-tx"] == 1
    assert runs[512, "testbed-nic-tx"] == 0, "the testbed has as many ranks as one machine can run"


def test_no_seed_for_tuning_is_ever_scored() -> None:
    assert min(case.seed for full in (False, True) for case in plan_cases(full)) == FIRST_SEED > 99


def test_variants_of_a_family_take_turns() -> None:
    told = [case.story for case in plan_cases(False, ["nic-tx"]) if case.ranks == 64]
    assert set(told) == {story.name for story in list_stories() if story.family == "nic-tx"}
    assert told[0] == told[6] != told[1]


def test_full_table_has_every_variant_with_every_seed() -> None:
    cases = [case for case in plan_cases(True, ["nic-tx"]) if case.ranks == 64]
    assert len(cases) == len(set(cases)) == 6 * 20


def test_seeds_that_are_asked_for_replace_all_others() -> None:
    assert plan_cases(False, ["healthy"], [3, 4]) == [Case("healthy", 64, 3), Case("healthy", 64, 4)]


@pytest.mark.parametrize(
    ("story", "group"),
    [
        ("nic-tx-strong-ib", "single strong"),
        ("nic-tx-mild-ib", "hard"),
        ("nic-tx-healthy-ib", "silence"),
        ("two-faults-strong-socket", "hard"),
        ("two-faults-healthy-ib", "silence"),
        ("hang-absent-ib", "single strong"),
        ("moe-strong-ib", "silence"),
    ],
)
def test_stories_are_counted_under_what_they_ask(story: str, group: str) -> None:
    assert group_of(find_story(story)) == group


def test_hard_families_are_there_and_have_their_reason() -> None:
    assert set(HARD) <= set(family_names())
    assert all(HARD.values())


def test_large_jobs_are_sampled_and_keep_their_story() -> None:
    large = Case("nic-tx-strong-ib", 4_096, FIRST_SEED).tell()
    assert (large.ranks, large.telling.sample) == (4_096, 0.1)
    assert large.expect == find_story("nic-tx-strong-ib").expect
    assert Case("nic-tx-strong-ib", 64, FIRST_SEED).tell() == find_story("nic-tx-strong-ib")
