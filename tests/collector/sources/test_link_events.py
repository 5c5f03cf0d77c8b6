"""What happens to a NIC is told once, in order, and also when only the kernel's own count has seen it."""

import pytest

from collector.kernel.links import Link
from collector.sources.links import FLAPPING_DOWNS, FLAPPING_NS, LinkWatch
from tests.builders import SECOND, T0


def link(
    *, up: bool = True, downs: int | None = 5, ups: int | None = 6, enabled: bool = True, index: int = 2
) -> Link:
    operstate = "up" if up else "down"
    return Link(
        "eth0", index, up, enabled, operstate=operstate, has_device=True, carrier_downs=downs, carrier_ups=ups
    )


class Nic:
    """A NIC that is watched; each sight comes a second after the one before."""

    def __init__(self, first: Link) -> None:
        self.watch = LinkWatch("h0", "eth0")
        self.now_ns = T0
        assert self.watch.observe(T0, first) == []

    def see(self, seen: Link, *, is_notice: bool = False) -> list[str]:
        self.now_ns += SECOND
        self.events = self.watch.observe(self.now_ns, seen, is_notice)
        return [event.kind for event in self.events]

    @property
    def messages(self) -> list[str]:
        return [event.message for event in self.events]


def test_nic_that_stays_as_it_is_reports_nothing() -> None:
    nic = Nic(link())
    assert nic.see(link()) == nic.see(link(), is_notice=True) == []


def test_nic_that_goes_down_and_returns_is_reported_with_its_component_and_time() -> None:
    nic = Nic(link())
    assert nic.see(link(up=False, downs=6)) == ["link_down"]
    (event,) = nic.events
    assert (event.source, event.component, event.severity) == ("links", "nic:h0/eth0", "error")
    assert (event.ts_ns, event.message) == (T0 + SECOND, "eth0 went down: its state is down")
    assert nic.see(link(downs=6, ups=7)) == ["link_up"]
    assert nic.events[0].severity == "info"


def test_nic_that_is_down_at_the_start_is_reported_when_it_comes_up() -> None:
    nic = Nic(link(up=False))
    assert nic.see(link(up=False)) == []
    assert nic.see(link(ups=7)) == ["link_up"]


def test_nic_that_somebody_took_down_says_so() -> None:
    nic = Nic(link())
    nic.see(link(up=False, enabled=False))
    assert nic.messages == ["eth0 went down: it was taken down on this host"]


def test_loss_between_two_readings_that_nobody_reported_is_seen_in_the_count() -> None:
    nic = Nic(link())
    assert nic.see(link(downs=6, ups=7)) == ["link_down", "link_up"]
    assert nic.messages[0] == "eth0 lost its carrier and had it again before it was read"
    assert nic.see(link(downs=6, ups=7)) == []


def test_several_losses_between_two_readings_are_one_event_with_their_number() -> None:
    nic = Nic(link())
    assert nic.see(link(up=False, downs=7, ups=7)) == ["link_down"]
    assert nic.messages == ["eth0 went down 2 times since the last reading: its state is down"]


def test_nic_that_came_up_and_was_lost_again_unseen_is_down_once_more() -> None:
    nic = Nic(link(up=False))
    assert nic.see(link(up=False, downs=6, ups=7)) == ["link_down"]


def test_notices_that_the_reading_has_overtaken_report_nothing_twice() -> None:
    nic = Nic(link())
    assert nic.see(link(downs=6, ups=7)) == ["link_down", "link_up"]
    late = [link(up=False, downs=6), link(up=False, downs=6, ups=7), link(downs=6, ups=7)]
    assert [nic.see(notice, is_notice=True) for notice in late] == [[], [], []]


def test_state_without_loss_of_carrier_counts_when_a_reading_shows_it() -> None:
    nic = Nic(link())
    assert nic.see(link(up=False), is_notice=True) == []  # the kernel has not corrected its state yet
    assert nic.see(link(up=False)) == ["link_down"]


def test_kernel_without_counts_of_carriers_is_believed_by_its_states() -> None:
    nic = Nic(link(downs=None, ups=None))
    assert nic.see(link(up=False, downs=None, ups=None), is_notice=True) == ["link_down"]
    assert nic.see(link(downs=None, ups=None), is_notice=True) == ["link_up"]


def test_nic_made_anew_under_the_old_name_counts_from_its_own_beginning() -> None:
    nic = Nic(link(downs=100, ups=100))
    assert nic.see(link(downs=0, ups=1, index=9)) == []
    assert nic.see(link(downs=1, ups=2, index=9)) == ["link_down", "link_up"]


def test_nic_that_is_gone_is_reported_once_and_its_return_too() -> None:
    nic = Nic(link())
    assert [event.kind for event in nic.watch.lose(T0)] == ["nic_gone"]
    assert nic.watch.lose(T0 + SECOND) == []
    assert nic.see(link(downs=0, ups=1, index=9)) == ["link_up"]
    assert [event.message for event in nic.watch.lose(T0)] == ["eth0 is no longer there; before it was up"]


def test_nic_never_seen_cannot_be_lost() -> None:
    assert LinkWatch("h0", "eth0").lose(T0) == []


def test_nic_that_flaps_is_reported_once_and_again_after_a_quiet_time() -> None:
    nic = Nic(link(downs=0))
    kinds = [nic.see(link(downs=count)) for count in range(1, FLAPPING_DOWNS + 3)]
    assert [("link_flapping" in each) for each in kinds] == [False, False, True, False, False]
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    nic.now_ns += FLAPPING_NS + SECOND
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    assert nic.see(link(downs=2 * FLAPPING_DOWNS + 2)) == ["link_down", "link_up", "link_flapping"]
    assert nic.messages[-1] == "eth0 went down 3 times within 10 minutes"


@pytest.mark.parametrize("gap_ns", [FLAPPING_NS // 2 + SECOND])
def test_losses_far_from_each_other_are_no_flapping(gap_ns: int) -> None:
    nic = Nic(link(downs=0))
    for count in range(1, 10):
        nic.now_ns += gap_ns
        assert nic.see(link(downs=count)) == ["link_down", "link_up"]
