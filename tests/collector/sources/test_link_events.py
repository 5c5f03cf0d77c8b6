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


DOWN, UP, BOTH = ["link_down"], ["link_up"], ["link_down", "link_up"]
SILENT, SILENT_DOWN = link(downs=None, ups=None), link(up=False, downs=None, ups=None)


@pytest.mark.parametrize(
    ("first", "sights"),
    [
        (link(), [(link(), False, []), (link(), True, [])]),
        (link(up=False), [(link(up=False), False, []), (link(ups=7), False, UP)]),
        (link(up=False), [(link(up=False, downs=6, ups=7), False, DOWN)]),
        (
            link(),
            [(link(downs=6, ups=7), False, BOTH)]
            + [(late, True, []) for late in (link(up=False, downs=6), link(up=False, downs=6, ups=7))]
            + [(link(downs=6, ups=7), True, [])],
        ),
        (link(), [(link(up=False), True, []), (link(up=False), False, DOWN)]),
        (SILENT, [(SILENT_DOWN, True, DOWN), (SILENT, True, UP)]),
        (
            link(downs=100, ups=100),
            [(link(downs=0, ups=1, index=9), False, []), (link(downs=1, ups=2, index=9), False, BOTH)],
        ),
    ],
    ids=[
        "stays as it is",
        "down at the start",
        "came up and was lost unseen",
        "notices that the reading has overtaken",
        "a notice before the kernel has corrected its state",
        "a kernel without counts",
        "made anew under the old name",
    ],
)
def test_change_is_reported_once(first: Link, sights: list[tuple[Link, bool, list[str]]]) -> None:
    nic = Nic(first)
    assert [nic.see(seen, is_notice=is_notice) for seen, is_notice, _ in sights] == [kinds for *_, kinds in sights]


def test_nic_that_goes_down_and_returns_is_reported_with_its_component_and_time() -> None:
    nic = Nic(link())
    assert nic.see(link(up=False, downs=6)) == DOWN
    (event,) = nic.events
    assert (event.source, event.component, event.severity) == ("links", "nic:h0/eth0", "error")
    assert (event.ts_ns, event.message) == (T0 + SECOND, "eth0 went down: its state is down")
    assert nic.see(link(downs=6, ups=7)) == UP
    assert nic.events[0].severity == "info"


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (link(up=False, enabled=False), "eth0 went down: it was taken down on this host"),
        (link(downs=6, ups=7), "eth0 lost its carrier and had it again before it was read"),
        (link(up=False, downs=7, ups=7), "eth0 went down 2 times since the last reading: its state is down"),
    ],
)
def test_loss_says_how_it_came_about(seen: Link, message: str) -> None:
    nic = Nic(link())
    nic.see(seen)
    assert nic.messages[0] == message
    assert nic.see(seen) == []


def test_nic_that_is_gone_is_reported_once_and_its_return_too() -> None:
    assert LinkWatch("h0", "eth0").lose(T0) == [], "it was never seen"
    nic = Nic(link())
    assert [event.kind for event in nic.watch.lose(T0)] == ["nic_gone"]
    assert nic.watch.lose(T0 + SECOND) == []
    assert nic.see(link(downs=0, ups=1, index=9)) == UP
    assert [event.message for event in nic.watch.lose(T0)] == ["eth0 is no longer there; before it was up"]


def test_nic_that_flaps_is_reported_once_and_again_after_a_quiet_time() -> None:
    nic = Nic(link(downs=0))
    kinds = [nic.see(link(downs=count)) for count in range(1, FLAPPING_DOWNS + 3)]
    assert [("link_flapping" in each) for each in kinds] == [False, False, True, False, False]
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    nic.now_ns += FLAPPING_NS + SECOND
    assert nic.see(link(downs=FLAPPING_DOWNS + 2)) == []
    assert nic.see(link(downs=2 * FLAPPING_DOWNS + 2)) == ["link_down", "link_up", "link_flapping"]
    assert nic.messages[-1] == "eth0 went down 3 times within 10 minutes"


def test_losses_far_from_each_other_are_no_flapping() -> None:
    nic = Nic(link(downs=0))
    for count in range(1, 10):
        nic.now_ns += FLAPPING_NS // 2 + SECOND
        assert nic.see(link(downs=count)) == BOTH
