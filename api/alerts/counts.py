"""How tries to deliver alerts ended, counted by the process that sends; Prometheus adds processes up."""

from typing import get_args

from prometheus_client import Counter

from lockstep.alert_settings import TargetKind
from lockstep.control.deliveries import DeliveryState

_RESULTS: dict[DeliveryState, str] = {"delivered": "delivered", "waiting": "failed", "failed": "dead"}


class DeliveryCounts:
    """Counts tries by the receiver's kind and result: `failed` comes again, `dead` does not.

    Every series is there from the start: of one that begins with its first failure there is no increase to see.
    """

    def __init__(self) -> None:
        self.counter = Counter(
            "lockstep_deliveries", "Tries to deliver an alert, by how they ended", ["kind", "result"], registry=None
        )
        for kind in get_args(TargetKind):
            for result in _RESULTS.values():
                self.counter.labels(kind, result)

    def count(self, kind: TargetKind, state: DeliveryState) -> None:
        """Count one try by what became of its message."""
        self.counter.labels(kind, _RESULTS[state]).inc()
