"""A host whose proxy threads get no CPU flushes late, all others do not."""

import numpy as np

from analyzer.straggler.reading import Flushes
from analyzer.straggler.stragglers import StarvingOptions, find_starving
from tests.analyzer.straggler.job import Job, context, world


def flushes(*us_per_step: float, steps: int = 1000, busy_ms: float = 500.0) -> Flushes:
    """Return hosts that took so many microseconds for each of their steps."""
    hosts = tuple(f"h{number}" for number in range(len(us_per_step)))
    count = np.full(len(hosts), float(steps))
    return Flushes(hosts, count, np.array(us_per_step) * 1e3 * count, np.full(len(hosts), busy_ms * 1e6))


def starving(found: Flushes) -> list[tuple[str, str]]:
    where = context(Job(16, world(16)).roster())
    return [(each.fault_class, each.component) for each in find_starving(found, where, StarvingOptions())]


def test_a_starved_host_is_named_with_what_to_look_for() -> None:
    where = context(Job(16, world(16)).roster())
    (finding,) = find_starving(flushes(2, 2, 600, 3), where, StarvingOptions())
    assert (finding.fault_class, finding.component) == ("noncomm_slow", "host:h2")
    assert "no CPU" in finding.reason
    assert finding.evidence[0]["flush_us_per_step"] == 600


def test_flushes_alike_are_no_news() -> None:
    assert starving(flushes(600, 610, 590, 620)) == []


def test_a_few_microseconds_more_are_no_news() -> None:
    assert starving(flushes(1, 1, 40, 1)) == []


def test_what_holds_nobody_up_is_no_news() -> None:
    assert starving(flushes(2, 2, 600, 3, busy_ms=100_000.0)) == []


def test_few_steps_and_a_single_host_say_nothing() -> None:
    assert starving(flushes(2, 2, 600, 3, steps=5)) == []
    assert starving(flushes(600)) == []
    assert starving(Flushes()) == []


def test_half_of_the_hosts_at_once_have_another_cause() -> None:
    assert starving(flushes(2, 600, 600, 3)) == []
