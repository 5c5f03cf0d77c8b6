"""Loading takes the bytes over the rate of the source, and what is not known is not guessed."""

import pytest

from planner.recovery.checkpoints.loading import Load, ReadRate, estimate_convert_s, estimate_load_s, find_rate
from tests.planner.recovery.checkpoints.build import checkpoint, zero

GIVEN = ReadRate(source="remote", bytes_per_s=1e9, how="given")


def test_rate_seen_is_the_median_and_wins_over_the_given() -> None:
    loads = [Load(source="remote", bytes=8_000, seconds=seconds) for seconds in (1.0, 2.0, 80.0)]
    rate = find_rate("remote", [*loads, Load(source="peer", bytes=8_000, seconds=0.1)], GIVEN)
    assert rate == ReadRate(source="remote", bytes_per_s=4_000, how="seen", loads=3)


def test_rate_of_a_source_that_was_never_read_is_the_given_one() -> None:
    assert find_rate("remote", [], GIVEN) == GIVEN
    assert find_rate("remote", []) is None


def test_load_time_is_that_of_the_source() -> None:
    assert estimate_load_s(checkpoint(bytes=8_000_000_000), [GIVEN]) == pytest.approx(8.0)
    assert estimate_load_s(checkpoint(source="peer"), [GIVEN]) is None


def test_converting_reads_and_writes_twice() -> None:
    assert estimate_convert_s(zero(bytes=10_000_000_000), [GIVEN]) == pytest.approx(8.6 + 40.0)
    assert estimate_convert_s(zero(), []) is None
