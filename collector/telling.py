"""Events about one part, as the source that watches it tells them."""

from dataclasses import dataclass

from lockstep.records import Event


@dataclass(frozen=True)
class Teller:
    """Who tells, and of what."""

    host: str
    source: str
    component: str  # as verdicts name it: nic:h3/eth1, gpu:h3/0

    def tell(self, now_ns: int, kind: str, severity: str, message: str) -> Event:
        return Event(
            host=self.host,
            ts_ns=now_ns,
            source=self.source,
            kind=kind,
            component=self.component,
            severity=severity,
            message=message,
        )
