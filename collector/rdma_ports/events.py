"""What happens to an RDMA port between two readings: it goes down, comes back, vanishes, or breaks a rule."""

from collections.abc import Iterable

from collector.rdma_ports.rules import CounterRule, RuleWatch
from collector.rdma_ports.sysfs import RdmaPort
from collector.telling import Teller
from lockstep.records import Event


class PortWatch:
    """Remembers what one port was like; the first reading is where it begins and no event."""

    def __init__(self, host: str, nic: str, rules: Iterable[CounterRule]) -> None:
        self._nic = nic
        self._teller = Teller(host, "rdma", f"nic:{host}/{nic}")
        self._rules = tuple(rules)
        self._name = nic  # for a person: with the network interfaces, as far as they were ever seen
        self._was: RdmaPort | None = None
        self.is_gone = False
        self._forget_counters()

    def observe(self, now_ns: int, port: RdmaPort) -> list[Event]:
        """Take a reading and return what happened since the one before."""
        if port.netdevs:
            self._name = f"{self._nic} ({', '.join(port.netdevs)})"
        return self._state_events(now_ns, port) + self._counter_events(now_ns, port)

    def lose(self, now_ns: int) -> list[Event]:
        """Note that the port is not listed any more; tell it once."""
        if self.is_gone:
            return []
        self.is_gone = True
        self._forget_counters()
        state = self._was.state if self._was else "a state never read"
        message = f"{self._name} is no longer listed by the kernel; before it was {state}"
        return [self._teller.tell(now_ns, "nic_gone", "error", message)]

    def _state_events(self, now_ns: int, port: RdmaPort) -> list[Event]:
        was, self._was = self._was, port
        was_gone, self.is_gone = self.is_gone, False
        if was_gone and port.up:
            return [self._teller.tell(now_ns, "link_up", "info", f"{self._name} is listed again and {port.state}")]
        if was_gone or was is None or was.up == port.up:
            return []
        change = f"{self._name} went from {was.state} to {port.state}, physical state {port.phys_state or 'unknown'}"
        kind, severity = ("link_up", "info") if port.up else ("link_down", "error")
        return [self._teller.tell(now_ns, kind, severity, change + _why_down(port))]

    def _counter_events(self, now_ns: int, port: RdmaPort) -> list[Event]:
        events = []
        for rule, watch in self._watches:
            value = port.counters.get(rule.counter)
            rise = watch.observe(now_ns, value) if value is not None else None
            if rise:
                events.append(self._teller.tell(now_ns, rule.counter, rule.severity, f"{self._name}: {rise}"))
        return events

    def _forget_counters(self) -> None:
        self._watches = [(rule, RuleWatch(rule)) for rule in self._rules]


def _why_down(port: RdmaPort) -> str:
    """Explain a port that is down although its own state says otherwise."""
    return "; its network interface is down" if not port.up and port.state.startswith("ACTIVE") else ""
