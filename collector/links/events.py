"""What happens to an interface: it goes down, comes back, does so again and again, or vanishes; all pure."""

from collections import deque

from collector.links.readings import Link
from collector.telling import Teller
from lockstep.clock import NS_PER_S
from lockstep.records import Event

# A cable that is moved or a switch that boots gives one loss, or two while the speed is negotiated.
FLAPPING_DOWNS = 3
FLAPPING_NS = 600 * NS_PER_S


class LinkWatch:
    """Remembers what one interface was like; the first sight of it is where it begins and no event.

    Sights come in order from notifications and readings. The kernel's count of lost carriers tells what neither
    showed: notifications are merged when changes follow each other closely, and lost when there are too many.
    """

    def __init__(self, host: str, nic: str) -> None:
        self._nic = nic
        self._teller = Teller(host, "links", f"nic:{host}/{nic}")
        self._was: Link | None = None
        self._is_gone = False
        self._downs: deque[tuple[int, int]] = deque(maxlen=FLAPPING_DOWNS)  # when, and how many
        self._is_flapping = False

    def observe(self, now_ns: int, link: Link, is_notice: bool = False) -> list[Event]:
        """Take a sight of the interface and return what happened since the one before."""
        was, was_gone = self._was, self._is_gone
        if was is not None and (_is_older(link, was) or (is_notice and _is_unsettled(link, was))):
            return []
        self._was, self._is_gone = link, False
        if was_gone and link.is_up:
            return [self._teller.tell(now_ns, "link_up", "info", f"{self._nic} is there again and up")]
        if was is None or was_gone:
            return []
        return self._changes(now_ns, was, link)

    def lose(self, now_ns: int) -> list[Event]:
        """Note that the interface is not listed any more; tell it once."""
        if self._is_gone or self._was is None:
            return []
        self._is_gone = True
        before = "up" if self._was.is_up else "down"
        return [
            self._teller.tell(now_ns, "nic_gone", "error", f"{self._nic} is no longer there; before it was {before}")
        ]

    def _changes(self, now_ns: int, was: Link, link: Link) -> list[Event]:
        events = []
        downs = max(_counted_downs(was, link), int(was.is_up and not link.is_up))
        if downs:
            events.append(self._teller.tell(now_ns, "link_down", "error", self._describe_down(link, downs)))
        if link.is_up and (downs or not was.is_up):
            events.append(self._teller.tell(now_ns, "link_up", "info", f"{self._nic} has its carrier"))
        return events + self._judge_flapping(now_ns, downs)

    def _describe_down(self, link: Link, downs: int) -> str:
        times = f" {downs} times since the last reading" if downs > 1 else ""
        if link.is_up:
            return f"{self._nic} lost its carrier{times} and had it again before it was read"
        cause = f"its state is {link.operstate}" if link.is_enabled else "it was taken down on this host"
        return f"{self._nic} went down{times}: {cause}"

    def _judge_flapping(self, now_ns: int, downs: int) -> list[Event]:
        """Tell once that the interface flaps, and again only after it was quiet."""
        if downs:
            self._downs.append((now_ns, downs))
        while self._downs and now_ns - self._downs[0][0] > FLAPPING_NS:
            self._downs.popleft()
        count = sum(each for _, each in self._downs)
        was_flapping, self._is_flapping = self._is_flapping, count >= FLAPPING_DOWNS
        if was_flapping or not self._is_flapping:
            return []
        minutes = FLAPPING_NS // (60 * NS_PER_S)
        message = f"{self._nic} went down {count} times within {minutes} minutes"
        return [self._teller.tell(now_ns, "link_flapping", "error", message)]


def _counted_downs(was: Link, link: Link) -> int:
    if link.index != was.index or link.carrier_downs is None or was.carrier_downs is None:
        return 0
    return max(0, link.carrier_downs - was.carrier_downs)


def _is_older(link: Link, was: Link) -> bool:
    """Return whether a notification tells of a moment before one already seen."""
    return link.index == was.index and _carrier_changes(link) < _carrier_changes(was)


def _is_unsettled(link: Link, was: Link) -> bool:
    """Return whether a notification says down only because the kernel corrects the state after the carrier."""
    is_same_carrier = link.index == was.index and _carrier_changes(link) == _carrier_changes(was) != (0, 0)
    return is_same_carrier and link.is_enabled and not link.is_up


def _carrier_changes(link: Link) -> tuple[int, int]:
    return link.carrier_downs or 0, link.carrier_ups or 0
