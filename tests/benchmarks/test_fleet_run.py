"""A load is sustained when receipts come in time and nothing piles up, and else the reason is said."""

import math
from dataclasses import replace

import pytest

from benchmarks.fleet_head import Sample
from benchmarks.fleet_run import Quantiles, RunOutcome, RunPlan, judge
from benchmarks.fleet_sender import BATCH_SECONDS, Sent
from lockstep.clock import NS_PER_S

START_NS = 50 * NS_PER_S
BATCH = 1_000  # bytes


def _sent(host: int = 0, number: int = 1, ack_s: float = 0.1, late_s: float = 0.0, tries: int = 1) -> Sent:
    due_ns = START_NS + (number - 1) * NS_PER_S
    sent_ns = due_ns + int(late_s * NS_PER_S)
    acked_ns = 0 if math.isinf(ack_s) else sent_ns + int(ack_s * NS_PER_S)
    return Sent(host, number, due_ns, sent_ns, acked_ns, tries, rows=10, bytes=BATCH)


def _sample(second: float, backlog: int = 0, cpu_s: float = 0.0, store_cpu_s: float | None = 0.0) -> Sample:
    return Sample(START_NS + int(second * NS_PER_S), backlog, cpu_s, store_cpu_s, 0.0)


def _outcome(
    sent: list[Sent], samples: list[Sample] | None = None, warm_up_s: int = 0, seconds: int = 10
) -> RunOutcome:
    plan = RunPlan(range(1), first_second=1_000, seconds=seconds, warm_up_s=warm_up_s)
    return RunOutcome(plan, START_NS, tuple(sent), tuple(samples or []), {})


HEALTHY = [_sent(number=number) for number in range(1, 11)]


def test_a_steady_load_is_sustained_and_its_rate_is_that_of_the_receipts() -> None:
    judgement = judge(_outcome(HEALTHY, [_sample(second, BATCH) for second in range(10)]))
    assert judgement.is_sustained
    assert judgement.trouble == ()
    assert judgement.rows_per_s == pytest.approx(10)
    assert (judgement.ack.p50_s, judgement.ack.p99_s) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(
    ("odd_one", "reason"),
    [
        (_sent(number=10, ack_s=2.5), "receipts took 2.5 s (p99)"),
        (_sent(number=10, late_s=2.5), "agents sent 2.5 s late (p99)"),
        (_sent(number=10, ack_s=math.inf), "1 batches were never taken"),
        (_sent(number=10, tries=2), "1 batches were sent more than once"),
    ],
)
def test_a_batch_that_does_not_get_through_in_time_is_the_reason(odd_one: Sent, reason: str) -> None:
    judgement = judge(_outcome([*HEALTHY[:9], odd_one]))
    assert (judgement.is_sustained, reason in judgement.trouble) == (False, True)


def test_a_backlog_that_grows_is_not_sustained_and_a_sawtooth_is_no_growth() -> None:
    growing = [_sample(second, int(0.2 * BATCH * second)) for second in range(10)]
    judgement = judge(_outcome(HEALTHY, growing))
    assert judgement.backlog_growth == pytest.approx(0.2)
    assert judgement.trouble == ("the backlog grew by 20 % of what came in",)
    sawtooth = [_sample(quarter / 4, BATCH * (1 + quarter % 4) // 4) for quarter in range(40)]
    assert judge(_outcome(HEALTHY, sawtooth)).is_sustained


def test_what_happens_while_warming_up_does_not_count() -> None:
    bad_start = [_sent(number=1, ack_s=0.9, late_s=5.0), _sent(number=2, ack_s=3.0), *HEALTHY[2:]]
    assert [judge(_outcome(bad_start, warm_up_s=each)).is_sustained for each in (0, 2)] == [False, True]


def test_cores_are_cpu_seconds_by_seconds_and_the_rest_of_the_machine_is_the_neighbours() -> None:
    first, last = _sample(0, cpu_s=3.0, store_cpu_s=10.0), _sample(10, cpu_s=8.0, store_cpu_s=12.0)
    last = replace(last, senders_cpu_s=1.0, machine_cpu_s=19.0)
    cores = judge(_outcome(HEALTHY, [first, last])).cores
    assert (cores.gateway, cores.store, cores.senders, cores.others) == pytest.approx((0.5, 0.2, 0.1, 1.1))
    assert cores.head == pytest.approx(0.7)


def test_a_delay_ends_with_the_first_query_that_finds_the_rows_and_without_one_it_has_no_end() -> None:
    sent = [_sent(number=1), _sent(number=2, late_s=0.5), _sent(host=7, number=1)]
    last = {number: 999 + number * BATCH_SECONDS for number in (1, 2)}  # second of a batch
    found = {(0, last[1]): sent[0].sent_ns + NS_PER_S, (0, last[2]): sent[1].sent_ns + 2 * NS_PER_S}
    outcome = replace(_outcome(sent), sighted=found)
    assert judge(outcome).delay == Quantiles(2.0, 2.0)  # host 7 was not looked for
    outcome = replace(_outcome(sent[:2]), sighted={(0, last[1]): sent[0].sent_ns + NS_PER_S})
    assert judge(outcome).delay.p99_s == math.inf
