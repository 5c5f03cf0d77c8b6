"""The late rank is named by what it does itself, and nobody is named for what a job is like."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from analyzer.straggler.gpu_waits import PastWaits
from analyzer.straggler.memory import SlowStep, StragglerMemory, StragglerSince
from analyzer.straggler.operations import Operations
from analyzer.straggler.own_past import OwnTimes
from analyzer.straggler.reading import Flushes, StragglerFacts
from analyzer.straggler.seconds import sum_seconds
from analyzer.straggler.starving import StarvingOptions, find_late_proxies, find_starving
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers
from analyzer.windows.window import Finding
from tests.analyzer.straggler.job import (
    MS,
    Act,
    Extra,
    Job,
    context,
    exchange,
    look,
    named,
    pipeline,
    ring,
    tensor_and_data,
    world,
)
from tests.builders import SECOND, T0

SLOW = 12


def late(culprit: int, ms: float, act: int = 0) -> Extra:
    """Return what makes one rank late before one act of every step."""
    return lambda step, number, rank: ms if rank == culprit and number == act else 0.0


def once(culprit: int, ms: float) -> Extra:
    """Return what makes one rank late in a single step."""
    return lambda step, number, rank: ms if (step, number, rank) == (2, 0, culprit) else 0.0


def found(facts: StragglerFacts, job: Job, period_ns: int | None = None) -> list[Finding]:
    return find_stragglers(facts, StragglerMemory(), context(job.roster(), period_ns=period_ns), StragglerOptions())[
        0
    ]


def follow(
    jobs: Iterable[Job], every_s: float = 10.0, period_ns: int | None = None
) -> tuple[list[list[Finding]], StragglerMemory]:
    """Return what each evaluation says of a job that does these things in turn, and what is remembered."""
    memory, said = StragglerMemory(), []
    for number, each in enumerate(jobs):
        job = dataclasses.replace(each, begin_ns=round(number * every_s * SECOND))
        where = context(job.roster(), job.begin_ns, period_ns)
        findings, memory = find_stragglers(StragglerFacts(job.play()), memory, where, StragglerOptions())
        said.append(findings)
    return said, memory


def watch(jobs: Iterable[Job], every_s: float = 10.0, period_ns: int | None = None) -> list[list[str]]:
    """Return which parts each evaluation names."""
    return [[finding.component for finding in findings] for findings in follow(jobs, every_s, period_ns)[0]]


def test_slow_gpu_and_late_process_are_told_apart_with_their_cost_and_what_was_ruled_out() -> None:
    (finding,), _ = look(Job(16, world(16), gpu=late(SLOW, 80.0)))
    assert (finding.fault_class, finding.component) == ("noncomm_slow", "gpu:h1/4")
    assert finding.lost_share == pytest.approx(80 / 240, abs=0.08)
    assert "rank 12) computes longer" in finding.reason
    assert [cleared.component for cleared in finding.ruled_out] == ["host:h1"]
    assert (finding.evidence[0]["rank"], finding.may_isolate) == (SLOW, True)
    (finding,), _ = look(Job(16, world(16), host=late(SLOW, 80.0)))
    assert (finding.fault_class, finding.component) == ("noncomm_slow", "host:h1")
    assert (finding.ambiguous_with, finding.may_isolate) == (("rank:12",), False)
    assert [cleared.component for cleared in finding.ruled_out] == ["gpu:h1/4"]
    job = Job(32, world(32), host=lambda step, act, rank: 80.0 if rank in (17, 19) and act == 0 else 0.0)
    (finding,), _ = look(job)
    assert (finding.component, finding.ambiguous_with) == ("host:h2", ("rank:17", "rank:19"))
    assert "rank 17 and 1 more" in finding.reason


def test_job_in_which_nobody_is_late_for_long_is_silent() -> None:
    assert named(Job(16, world(16))) == []
    assert named(Job(16, world(16), gpu=late(SLOW, 2.0))) == []
    assert named(Job(16, world(16), host=once(SLOW, 2_000.0))) == []
    random = np.random.default_rng(5)
    work = random.lognormal(4.0, 0.5, (6, 16))
    assert named(Job(16, world(16), gpu=lambda step, act, rank: work[step, rank] if act == 0 else 0.0)) == []
    assert named(Job(64, world(64), gpu=lambda step, act, rank: 80.0 if rank % 2 and act == 0 else 0.0)) == []
    job = Job(64, tensor_and_data(64, tp=4), gpus_per_host=4, gpu=lambda step, act, rank: 30.0 * (rank % 4 == 0))
    assert named(job) == []
    assert named(Job(1, world(1), gpu=late(0, 80.0))) == []
    assert found(StragglerFacts(Operations()), Job(2, world(2))) == []


def test_host_that_is_late_once_a_step_has_a_slow_data_loader_and_all_over_it_lacks_cpu() -> None:
    job = Job(32, world(32), host=lambda step, act, rank: 80.0 if rank // 8 == 2 and act == 0 else 0.0)
    (finding,), _ = look(job)
    assert (finding.fault_class, finding.component) == ("software", "host:h2")
    assert "data loader" in finding.reason
    assert not finding.may_isolate
    job = Job(32, world(32, compute_ms=1.0), host=lambda step, act, rank: 45.0 if rank // 8 == 2 else 0.0)
    (finding,), _ = look(job)
    assert (finding.fault_class, finding.component) == ("noncomm_slow", "host:h2")
    assert "CPU" in finding.reason
    job = Job(32, world(32), gpu=lambda step, act, rank: 80.0 if rank // 8 == 2 and act == 0 else 0.0)
    assert named(job) == [("noncomm_slow", "host:h2")]


def test_two_stragglers_are_both_named() -> None:
    job = Job(16, world(16), gpu=lambda step, act, rank: {3: 40.0, SLOW: 90.0}.get(rank, 0.0) if act == 0 else 0.0)
    assert sorted(named(job)) == [("noncomm_slow", "gpu:h0/3"), ("noncomm_slow", "gpu:h1/4")]
    job = Job(5, world(5), gpus_per_host=1, gpu=lambda step, act, rank: 80.0 if rank in (1, 3) and act == 0 else 0.0)
    assert sorted(component for _, component in named(job)) == ["gpu:h1/0", "gpu:h3/0"]


def test_who_is_late_is_named_in_any_layout_and_who_waits_for_it_is_not() -> None:
    assert named(Job(16, tensor_and_data(16, tp=4), gpu=late(SLOW, 60.0))) == [("noncomm_slow", "gpu:h1/4")]
    assert named(Job(8, ring(8), gpus_per_host=1, gpu=late(5, 60.0))) == [("noncomm_slow", "gpu:h5/0")]
    assert named(Job(16, pipeline(16, stages=4), gpu=late(6, 60.0, act=1))) == [("noncomm_slow", "gpu:h0/6")]
    job = Job(16, world(16), gpu=late(SLOW, 80.0), gpus_per_host=4, clock_ns=lambda rank: rank // 4 * 50 * MS)
    assert named(job) == [("noncomm_slow", "gpu:h3/0")]


def replicas_of_hosts(replicas: int) -> list[Act]:
    """Return a step of pipelines of two hosts, a stage each, whose two GPUs are tensor-parallel."""
    hosts = [[2 * host, 2 * host + 1] for host in range(2 * replicas)]
    chains = [[rank, rank + 2 * replicas] for rank in range(2 * replicas)]
    alike = [list(range(first, first + 2 * replicas, 2)) for first in (0, 1, 2 * replicas, 2 * replicas + 1)]
    there, back = Act(0.5, chains, [(0, 1)]), Act(0.5, chains, [(1, 0)])
    first, second = hosts[:replicas], hosts[replicas:]
    return [Act(30.0, first), there, Act(1.0, first), Act(30.0, second), back, Act(5.0, alike)]


def test_a_host_that_is_late_as_a_whole_for_itself_is_waited_for_by_its_like_in_other_pipelines() -> None:
    """Nobody waits in what its GPUs do among themselves; the next stage does, and hands it on to the all-reduce."""
    usual = Job(16, replicas_of_hosts(4), gpus_per_host=2)
    late_by = [lambda _, number, rank: 60.0 * (rank in (2, 3) and number == 0)]
    late_by += [lambda _, number, rank: 15.0 * (rank in (2, 3) and number == 2)]
    said = [named(dataclasses.replace(usual, host=extra)) for extra in late_by]
    assert said == [[("software", "host:h1")], []], "the second waits for the next stage longer than that"


def test_stage_with_more_to_do_is_no_fault() -> None:
    job = Job(16, pipeline(16, stages=4), gpu=lambda step, act, rank: 60.0 if rank >= 12 and act == 3 else 0.0)
    assert named(job) == []
    acts = [*pipeline(16, stages=4), Act(10.0, [list(range(16))])]
    heavy = [late(rank, 400.0, act=len(acts) - 1) for rank in range(12, 16)]
    job = Job(16, acts, gpus_per_host=4, gpu=lambda step, act, rank: sum(more(step, act, rank) for more in heavy))
    assert named(job) == []


def test_one_of_two_hosts_is_named_at_once_though_half_of_the_ranks_are_late() -> None:
    """What they differ by is what makes them late, and no measure of how much ranks differ by themselves."""
    job = Job(8, world(8), gpus_per_host=4, host=lambda step, act, rank: 60.0 if rank < 4 and act == 0 else 0.0)
    assert named(job) == [("software", "host:h0")]


@pytest.mark.parametrize("culprits", [range(0, 48, 8), range(5)])
def test_more_culprits_than_chance_allows_are_left_to_others(culprits: range) -> None:
    # One GPU on each of six hosts, or five of the eight GPUs of one host.
    job = Job(64, world(64), gpu=lambda step, act, rank: 80.0 if rank in culprits and act == 0 else 0.0)
    assert named(job) == []


@pytest.mark.parametrize("acts", [ring(8), exchange(8)])
def test_what_is_done_at_once_is_counted_once(acts: list[Act]) -> None:
    (finding,), _ = look(Job(8, acts, gpus_per_host=1, gpu=late(5, 60.0)))
    assert finding.lost_share == pytest.approx(60 / 300, abs=0.05)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_among_few_ranks_a_large_effect_is_named_but_of_two_nobody_is_odd(ranks: int) -> None:
    expected = [("noncomm_slow", "gpu:h1/0")] if ranks > 2 else []
    assert named(Job(ranks, world(ranks), gpus_per_host=1, gpu=late(1, 80.0))) == expected


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_stage_is_found_by_following_communicators_of_two(replicas: int) -> None:
    """The second of four stages has more to do; stages in the middle have the same ranks in their communicators."""
    acts, stage = pipeline(4 * replicas, stages=4, by_two=True), range(replicas, 2 * replicas)
    heavy = Job(4 * replicas, acts, replicas, gpu=lambda _, act, rank: 60.0 * (rank in stage and act == 1))
    assert named(heavy) == []
    slow = Job(4 * replicas, acts, 1, gpu=late(replicas, 60.0, act=1))
    assert named(slow) == ([("noncomm_slow", f"gpu:h{replicas}/0")] if replicas > 2 else []), "by one peer nobody is"


@pytest.mark.parametrize("ranks", [4, 16])
def test_rank_that_saves_a_checkpoint_every_few_steps_is_not_blamed(ranks: int) -> None:
    saves = (1, 4, 7, 10)
    job = Job(ranks, world(ranks), steps=12, host=lambda step, act, rank: 300.0 * (step in saves and act + rank == 0))
    assert found(StragglerFacts(job.play()), job, 160 * MS) == []


@pytest.mark.parametrize("steps_late", [(0, 1, 3, 4), (2, 3, 4)])
def test_rank_0_that_pauses_in_some_steps_is_not_named_until_it_comes_again(steps_late: tuple[int, ...]) -> None:
    """Rank 0 alone saves, logs and evaluates; of any other rank the same pauses are its host's."""

    def said(rank: int) -> list[list[tuple[str, float]]]:
        pauses: Extra = lambda step, act, each: 90.0 * (each == rank and act == 0 and step in steps_late)  # noqa: E731
        looks, _ = follow([Job(6, world(6), gpus_per_host=1, host=pauses)] * 2, period_ns=200 * MS)
        return [[(finding.component, finding.likelihood) for finding in findings] for findings in looks]

    assert said(0) == [[], [("host:h0", 0.6)]]
    assert said(3) == [[("host:h3", 0.97)]] * 2


def test_rank_0_that_is_late_in_every_step_is_named_at_once_as_is_its_whole_host() -> None:
    job = Job(6, world(6), gpus_per_host=1, steps=9, host=late(0, 90.0))
    (finding,) = found(StragglerFacts(job.play()), job, 250 * MS)
    assert (finding.component, finding.likelihood) == ("host:h0", 0.97)
    job = Job(6, world(6), gpus_per_host=2, host=lambda step, act, rank: 90.0 * (rank < 2 and act == 0 and step < 4))
    assert [component for _, component in named(job)] == ["host:h0"]


def test_lateness_counts_where_somebody_waits_and_a_throttled_gpu_says_so() -> None:
    job = Job(16, world(16), gpu=late(SLOW, 80.0))
    rows = job.play()
    (finding,) = found(StragglerFacts(rows, throttled={("h1", 4): "hw_thermal_slowdown"}), job)
    assert "hw_thermal_slowdown" in finding.reason
    assert found(StragglerFacts(dataclasses.replace(rows, dur_ns=np.full(len(rows), 20.0 * MS))), job) == []


@pytest.mark.parametrize(("ranks", "slow", "component"), [(16, SLOW, "gpu:h1/4"), (4, 2, "gpu:h0/2")])
def test_a_gpu_that_is_slow_now_and_then_is_named_when_it_comes_again(ranks: int, slow: int, component: str) -> None:
    job = Job(ranks, world(ranks), gpu=once(slow, 600.0))
    assert watch([job] * 4) == [[], [], [component], [component]]


def test_a_gpu_that_is_slow_now_and_then_is_not_named_where_others_are_too() -> None:
    def with_odd(other: int) -> Job:
        slow, odd = once(SLOW, 600.0), once(other, 620.0)
        return Job(16, world(16), gpu=lambda step, act, rank: slow(step, act, rank) + odd(step - 2, act, rank))

    said, memory = follow(map(with_odd, (3, 5, 7, 9)))
    assert (said, len(memory.slow_steps)) == ([[]] * 4, 8)


def test_of_few_two_gpus_that_are_slow_now_and_then_are_no_fault() -> None:
    job = Job(4, world(4), gpu=lambda step, act, rank: 600.0 * ((step, act) == (3, 0) and rank in (1, 2)))
    assert watch([job] * 6) == [[]] * 6


@pytest.mark.parametrize(("ms", "noise_ms", "is_named"), [(12.0, 0.0, True), (12.0, 4.0, False), (4.0, 0.0, False)])
def test_among_quiet_few_a_small_effect_is_named(ms: float, noise_ms: float, is_named: bool) -> None:
    """A share of 7 % of the time, which would not do where the others differ by a third of that."""
    job = Job(
        6, world(6), gpus_per_host=2, gpu=lambda step, act, rank: {2: ms, 5: noise_ms}.get(rank, 0.0) * (act == 0)
    )
    assert named(job) == ([("noncomm_slow", "gpu:h1/0")] if is_named else [])


def test_hosts_lateness_counts_though_the_others_wait_for_it_operations_later() -> None:
    """Both ranks of h1 come late to what they do between themselves; the others wait in the next one."""
    job = Job(
        6, tensor_and_data(6, tp=2), gpus_per_host=2, host=lambda _, act, rank: 60.0 * (rank in (2, 3) and act == 0)
    )
    assert [component for _, component in named(job)] == ["host:h1"]


@pytest.mark.parametrize("changes", [0, 1])
def test_pauses_of_processes_are_never_named_whether_it_is_the_same_one_or_not(changes: int) -> None:
    assert watch(Job(16, world(16), host=once(changes * number, 900.0)) for number in range(6)) == [[]] * 6


def test_rows_of_unknown_ranks_and_without_sense_are_left_out() -> None:
    job = Job(16, world(16), gpu=late(SLOW, 80.0))
    rows = job.play()
    gap_ns = np.where(np.arange(len(rows)) % 7 == 3, np.nan, rows.gap_ns)
    broken = dataclasses.replace(rows, gap_ns=gap_ns, process=np.where(rows.process == 2, -1, rows.process))
    assert [finding.component for finding in found(StragglerFacts(broken), job)] == ["gpu:h1/4"]


def test_where_work_differs_much_a_late_rank_is_named_in_a_second_look_of_its_own() -> None:
    def uneven(seed: int) -> Job:
        work = np.random.default_rng(seed).normal(100.0, 25.0, (6, 16)).clip(0)
        return Job(
            16, world(16), gpu=lambda step, act, rank: (work[step, rank] + 300.0 * (rank == SLOW)) * (act == 0)
        )

    assert watch(map(uneven, range(4)), every_s=3.0) == [[], [], ["gpu:h1/4"], ["gpu:h1/4"]]


def test_where_work_differs_much_who_is_last_in_more_stretches_than_by_chance_is_named_at_once() -> None:
    work = np.random.default_rng(0).normal(200.0, 90.0, (24, 16)).clip(0)
    gpu: Extra = lambda step, act, rank: (work[step, rank] + 300.0 * (rank == SLOW)) * (act == 0)  # noqa: E731
    job = Job(16, world(16), gpu=gpu, steps=24)
    assert watch([job], period_ns=None) == [[]], "three stretches"
    assert watch([job], period_ns=400 * MS) == [["gpu:h1/4"]], "eight"


def test_where_one_loses_more_now_and_then_a_late_rank_is_named_in_a_second_look_of_its_own() -> None:
    gpu: Extra = lambda step, act, rank: (60.0 * (rank == SLOW) + 600.0 * (rank == 3 and step < 2)) * (act == 0)  # noqa: E731
    assert watch([Job(16, world(16), gpu=gpu)] * 2, period_ns=160 * MS) == [[], ["gpu:h1/4"]]


def seconds(lead_ns: float) -> StragglerFacts:
    """Return sums of five seconds of 16 ranks of which one waits less, with so long a lead of its operations."""
    process, ts_ns = np.repeat(np.arange(16), 5), np.tile(T0 + np.arange(5) * SECOND, 16)
    busy_ns = np.where(process == SLOW, 300 * MS, 600 * MS + process * MS)
    leads_ns = np.where(np.arange(16) == SLOW, lead_ns, 40.0 * MS)
    ones, no_stage = np.ones(len(process), np.int64), np.zeros(16, np.uint64)
    sums = sum_seconds(process, ts_ns, 10 * ones, busy_ns, ones < 0, leads_ns, no_stage)
    return StragglerFacts(sums, are_sums=True)


def test_in_sums_of_seconds_nobody_is_named_where_another_is_late_by_nearly_as_much() -> None:
    rows, job = seconds(70.0 * MS).operations, Job(16, world(16))
    less = np.where(rows.process == SLOW, 240 * MS, 0.0)
    next_to_it = np.where(rows.process == SLOW + 1, 45 * MS, 0.0)
    said = [
        [finding.component for finding in found(StragglerFacts(dataclasses.replace(rows, gap_ns=gap_ns), True), job)]
        for gap_ns in (rows.gap_ns - less, rows.gap_ns - less + next_to_it)
    ]
    assert said == [["gpu:h1/4"], []]


@pytest.mark.parametrize(("each", "more"), [(4, 1), (40, 10)])
def test_in_sums_a_late_host_is_compared_though_it_ends_operations_a_second_later(each: int, more: int) -> None:
    """The ranks of h1 spend 250 ms of a second less in operations, and end some of them in the next one."""
    process, ts_ns = np.repeat(np.arange(24), 6), np.tile(T0 + np.arange(6) * SECOND, 24)
    is_late, is_odd = process // 8 == 1, np.tile(np.arange(6) % 2 == 1, 24)
    count = each + more * (is_late == is_odd)
    busy_ns = count * 200 * MS // each + (~is_late) * 250 * MS
    no_stage, leads_ns = np.zeros(24, np.uint64), np.full(24, 300.0 * MS)
    sums = sum_seconds(process, ts_ns, count, busy_ns.astype(float), count < 0, leads_ns, no_stage)
    (finding,) = found(StragglerFacts(sums, are_sums=True), Job(24, world(24)))
    assert (finding.component, finding.evidence[0]["late"]) == ("host:h1", "host")
    count = each * np.where(is_late, 1, 3)  # most of its rows are lost, and with them the time in operations
    sums = sum_seconds(process, ts_ns, count, count * 200.0 * MS / each, count < 0, leads_ns, no_stage)
    assert found(StragglerFacts(sums, are_sums=True), Job(24, world(24))) == []


@pytest.mark.parametrize(
    ("late", "components"), [([3], ["gpu:h3/0"]), ([3, 7], []), ([2, 3], ["gpu:h2/0", "gpu:h3/0"])]
)
def test_in_sums_nobody_is_named_where_stages_are_late_together(late: list[int], components: list[str]) -> None:
    process, ts_ns = np.tile(np.arange(8), 6), np.repeat(T0 + np.arange(6) * SECOND, 8)
    busy_ns = np.where(np.isin(process, late), 400 * MS, 600 * MS + process * MS // 10)
    leads_ns, stage = np.where(np.isin(np.arange(8), late), 70.0 * MS, 40.0 * MS), np.repeat([1, 2], 4)
    ones = np.ones(len(process), np.int64)
    sums = sum_seconds(process, ts_ns, 10 * ones, busy_ns, ones > 0, leads_ns, stage.astype(np.uint64))
    job = Job(8, pipeline(8, stages=2), gpus_per_host=1)
    assert [finding.component for finding in found(StragglerFacts(sums, are_sums=True), job)] == components


@pytest.mark.parametrize(
    ("lead_ns", "component", "likelihood"),
    [(70.0 * MS, "gpu:h1/4", 0.97), (0.0, "host:h1", 0.97), (float("nan"), "gpu:h1/4", 0.6)],
)
def test_in_sums_the_rank_that_waits_least_is_named(lead_ns: float, component: str, likelihood: float) -> None:
    (finding,) = found(seconds(lead_ns), Job(16, world(16)))
    assert (finding.component, finding.likelihood) == (component, likelihood)
    assert finding.lost_share == pytest.approx(0.3, abs=0.02)
    assert ("host:h1" in finding.ambiguous_with) == (likelihood < 0.9)


def test_finding_says_since_when_and_keeps_saying_so_until_it_is_healed() -> None:
    job = Job(16, world(16), gpu=lambda step, act, rank: 80.0 if rank == SLOW and step >= 3 and act == 0 else 0.0)
    (first,), memory = look(job)
    (again,), _ = look(dataclasses.replace(job, begin_ns=2_000 * MS), memory)
    assert first.since_ns is not None
    assert 300 * MS < first.since_ns - T0 < 800 * MS  # three healthy steps of 160 ms come before
    assert again.since_ns == first.since_ns
    said, memory = follow([Job(16, world(16), gpu=late(SLOW, 80.0))] * 4 + [Job(16, world(16))], every_s=5.0)
    assert (said[-1], memory.straggling_since) == ([], {})


def test_who_was_late_is_confirmed_only_by_operations_that_were_not_seen_before() -> None:
    """Three steps of 260 ms in which one rank is late, then three of 160 ms in which nobody is, all in one window."""
    job = Job(16, world(16), host=lambda step, act, rank: 100.0 if rank == SLOW and step < 3 and act == 0 else 0.0)
    facts, where = StragglerFacts(job.play()), context(job.roster())
    for fresh_ms, is_stale in ((0, False), (300, False), (900, True)):
        fresh = dataclasses.replace(where, fresh_ns=T0 + fresh_ms * MS)
        (finding,) = find_stragglers(facts, StragglerMemory(), fresh, StragglerOptions())[0]
        assert (finding.component, finding.is_stale) == ("host:h1", is_stale)


def flushes(*us_per_step: float, steps: int = 1000, busy_ms: float = 500.0, ended_ms: int = 4_000) -> Flushes:
    """Return hosts that took so many microseconds for each step of transfers that ended so late after T0."""
    hosts = tuple(f"h{number}" for number in range(len(us_per_step)))
    count, newest_ns = np.full(len(hosts), float(steps)), np.full(len(hosts), T0 + ended_ms * MS)
    taken = np.array(us_per_step) * 1e3 * count
    return Flushes(hosts, newest_ns >= T0, count, taken, np.full(len(hosts), busy_ms * 1e6), newest_ns)


def starve(found: Flushes, *slow_hosts: str) -> list[Finding]:
    return find_starving(found, set(slow_hosts), context(Job(16, world(16)).roster()), StarvingOptions())


def starving(found: Flushes, *slow_hosts: str) -> list[tuple[str, str]]:
    return [(each.fault_class, each.component) for each in starve(found, *slow_hosts)]


def test_a_starved_host_is_named_with_what_to_look_for() -> None:
    (finding,) = starve(flushes(2, 2, 600, 3))
    assert (finding.fault_class, finding.component, finding.is_stale) == ("noncomm_slow", "host:h2", False)
    assert "no CPU" in finding.reason
    assert finding.evidence[0]["flush_us_per_step"] == 600


def test_flushes_that_are_alike_or_short_or_few_or_of_many_hosts_are_no_news() -> None:
    assert starving(flushes(600, 610, 590, 620)) == []
    assert starving(flushes(1, 1, 40, 1)) == []
    assert starving(flushes(2, 2, 600, 3, busy_ms=100_000.0)) == []
    assert starving(flushes(2, 2, 600, 3, steps=5)) == []
    assert starving(flushes(600)) == []
    assert starving(Flushes()) == []
    assert starving(flushes(2, 600, 600, 3)) == []


def test_late_proxy_threads_for_which_nobody_waits_are_no_fault() -> None:
    little = flushes(2, 2, 600, 3, busy_ms=100_000.0)
    assert (starving(little), starving(little, "h1"), starving(little, "h2")) == (
        [],
        [],
        [("noncomm_slow", "host:h2")],
    )
    assert [late.host for late in find_late_proxies(little, StarvingOptions())] == ["h2"]


def test_flushes_of_before_the_window_count_where_it_has_too_few_and_confirm_nothing() -> None:
    before, now = flushes(2, 2, 600, 3, ended_ms=-9_000), flushes(2, 2, 3, 3)
    (finding,) = starve(before)
    assert (finding.component, finding.is_stale) == ("host:h2", True)
    columns = [each.name for each in dataclasses.fields(Flushes)[1:]]
    both = [np.concatenate([getattr(each, name) for each in (now, before)]) for name in columns]
    assert starving(Flushes(now.hosts + before.hosts, *both)) == []


STAGES = pipeline(4, stages=4)


def made_late(job: Job, late_by: str, extra: Extra) -> Job:
    changed: dict[str, Any] = {late_by: extra}
    return dataclasses.replace(job, **changed)


@pytest.mark.parametrize(("late_by", "component"), [("gpu", "gpu:h2/0"), ("host", "host:h2")])
def test_stage_without_peers_is_held_against_its_own_past(late_by: str, component: str) -> None:
    """A stage of one rank has nobody to be compared with; its waits for others are inside of operations."""
    usual = Job(4, STAGES, gpus_per_host=1, steps=12)
    slow = made_late(usual, late_by, late(2, 200.0, act=1))
    assert watch([usual, usual, slow, slow]) == [[], [], [component], [component]]
    assert watch([usual, slow]) == [[], []]  # nobody knows yet what is usual
    everybody = dataclasses.replace(usual, gpu=lambda step, act, rank: 100.0)
    assert watch([usual, usual, everybody]) == [[], [], []]
    assert watch([usual, usual, dataclasses.replace(usual, gpu=late(2, 4.0, act=1))]) == [[], [], []]


def test_ranks_that_are_known_later_are_not_held_against_a_past_of_fewer() -> None:
    few, usual = (Job(ranks, acts, gpus_per_host=1, steps=12) for ranks, acts in ((2, world(2)), (4, STAGES)))
    slow = dataclasses.replace(usual, gpu=late(2, 200.0, act=1))
    assert watch([few, few, usual, usual, slow]) == [[], [], [], [], ["gpu:h2/0"]]


def test_two_ranks_are_held_against_their_own_past() -> None:
    usual = Job(2, world(2), gpus_per_host=1, steps=12)
    slow = dataclasses.replace(usual, host=late(1, 200.0))
    assert watch([usual, usual, slow]) == [[], [], ["host:h1"]]
    busy = dataclasses.replace(usual, host=lambda step, act, rank: 100.0)
    assert watch([busy, busy, usual]) == [[], [], []], "nobody takes more than before"


@pytest.mark.parametrize(("late_by", "what"), [("gpu", "all 2 GPUs of h1"), ("host", "they did not before")])
def test_all_ranks_of_a_stage_that_is_a_host_are_held_against_their_past(late_by: str, what: str) -> None:
    """Two stages of two ranks: both of a host are late, each the only peer of the other."""
    usual = Job(4, [*pipeline(4, stages=2), *pipeline(4, stages=2)], gpus_per_host=2, steps=12)
    both: Extra = lambda step, act, rank: 200.0 * (rank in (2, 3) and act == 1)  # noqa: E731
    first, second, (finding,) = follow([usual, usual, made_late(usual, late_by, both)], every_s=5.0)[0]
    assert (first, second, finding.component) == ([], [], "host:h1")
    assert what in finding.reason
    assert watch([usual, usual, made_late(usual, late_by, lambda step, act, rank: 200.0)]) == [[], [], []]


def test_job_that_became_slower_needs_no_more_operations_than_it_still_does_and_a_pause_makes_none_slower() -> None:
    usual = Job(2, world(2), gpus_per_host=1, steps=12)
    slow = dataclasses.replace(usual, steps=4, host=late(1, 800.0))
    assert watch([usual, usual, slow]) == [[], [], ["host:h1"]]
    paused = dataclasses.replace(usual, host=once(1, 2_000.0))
    assert watch([usual, usual, paused, paused]) == [[], [], [], []]


def test_rank_of_three_has_its_peers_also_where_a_window_cuts_one_of_them_off() -> None:
    job = Job(3, world(3), gpus_per_host=1, gpu=late(2, 80.0))
    rows = job.play()
    cut = StragglerFacts(rows.take(~((rows.process == 1) & (rows.seq == rows.seq.max()))))
    assert [finding.component for finding in found(cut, job)] == ["gpu:h2/0"]


def test_ranks_that_become_known_late_do_not_change_who_was_late() -> None:
    """Numbers of processes follow their ranks: where rank 0 tells of itself last, all others move up by one."""
    roster, first = (Job(ranks, world(ranks), gpus_per_host=1).roster() for ranks in (5, 4))
    without = dataclasses.replace(first, world_rank_of=first.world_rank_of + 1)
    since, own = StragglerSince(T0, T0 - SECOND), OwnTimes(T0, *(np.ones(4) for _ in range(4)))
    held, steps = PastWaits(held=frozenset({3})), (SlowStep(1, T0, 1.0),)
    memory = StragglerMemory(slow_steps=steps, waits=held, own=(own,), straggling_since={2: since}, roster=without)
    moved = memory.renumbered(roster)
    assert (moved.slow_steps[0].process, moved.waits.held, moved.straggling_since) == (2, frozenset({4}), {3: since})
    assert (moved.own, memory.renumbered(without).own) == ((), (own,))
    assert moved.renumbered(without).straggling_since == {2: since}
    assert StragglerMemory(straggling_since={0: since}, roster=roster).renumbered(without).straggling_since == {}
    nameless = (dataclasses.replace(each, world_rank_of=each.gpu_of * 0 - 1) for each in (first, roster))
    one, other = (dataclasses.replace(each, host_of=each.host_of[:1].repeat(len(each))) for each in nameless)
    assert StragglerMemory(straggling_since={0: since}, roster=one).renumbered(other).straggling_since == {}
