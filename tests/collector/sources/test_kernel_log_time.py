"""Two clocks that are read one after the other still give each event one time."""

from collector.sources.kernel_log import Timeline
from tests.builders import SECOND, T0

UPTIME = 1_000 * SECOND  # of the host at T0


def timeline(uptimes_ns: list[int]) -> Timeline:
    return Timeline(iter(uptimes_ns).__next__)


def test_delay_between_the_two_clocks_does_not_move_events() -> None:
    late_ns = SECOND // 20
    clocks = timeline([UPTIME, UPTIME + SECOND + late_ns])
    clocks.begin(T0)
    clocks.begin(T0 + SECOND)
    assert clocks.unix_ns(UPTIME) == T0


def test_delay_at_the_first_read_is_made_good_by_a_later_one() -> None:
    clocks = timeline([UPTIME + SECOND // 20, UPTIME + SECOND])
    clocks.begin(T0)
    clocks.begin(T0 + SECOND)
    assert clocks.unix_ns(UPTIME) == T0


def test_host_that_boots_in_1970_has_no_time_before_it() -> None:
    clocks = timeline([UPTIME])
    clocks.begin(5 * SECOND)
    assert clocks.unix_ns(0) == 0
