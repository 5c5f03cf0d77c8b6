"""Loading takes the bytes over the rate of the source, and what is not known is not guessed."""

import pytest

from planner.recovery.checkpoints.loading import ReadRate, estimate_convert_s, estimate_load_s
from tests.planner.recovery.checkpoints.build import checkpoint, zero

GIVEN = ReadRate(source="remote", bytes_per_s=1e9)


def test_load_time_is_that_of_the_source() -> None:
    assert estimate_load_s(checkpoint(bytes=8_000_000_000), [GIVEN]) == pytest.approx(8.0)
    assert estimate_load_s(checkpoint(source="peer"), [GIVEN]) is None


def test_converting_reads_and_writes_twice() -> None:
    assert estimate_convert_s(zero(bytes=10_000_000_000), [GIVEN]) == pytest.approx(8.6 + 40.0)
    assert estimate_convert_s(zero(), []) is None
