"""Sends what is packed, in order, until each parcel has its receipt or is refused for good."""

import threading

import structlog

from collector.parcel import Destination, Outbox, Parcel
from lockstep.clock import Clock
from lockstep.errors import DestinationAway, ServerRefused
from lockstep.wish import Wish

_log = structlog.get_logger("collector")

_LOOK_S = 1.0  # at the latest, should nobody tell that something arrived
_RETRY_S = 1.0
# What the gateway says about a batch and would say again. Everything else is about us, or comes from something else
# that answers at this address, and may be mended: the batch waits.
_FINAL_STATUS = frozenset({400, 413, 415, 422})


class Shipper:
    """Takes parcels from an outbox to their destination; `wishes` are those that came back last."""

    def __init__(self, host: str, outbox: Outbox, destination: Destination, clock: Clock) -> None:
        self._host, self._outbox, self._destination, self._clock = host, outbox, destination, clock
        self._trouble: str | None = None
        self.wishes: tuple[Wish, ...] = ()
        self.sent = self.sent_bytes = self.failures = 0
        self.arrived = threading.Event()  # something was put into the outbox, or it is the end

    @property
    def is_away(self) -> bool:
        """Whether the last attempt did not get through."""
        return self._trouble is not None

    def ship(self, stop: threading.Event) -> None:
        """Send until stopped."""
        while not stop.is_set():
            self.arrived.clear()
            parcel = None if stop.is_set() else self._outbox.first()
            if parcel is None:
                self._clock.wait(self.arrived, _LOOK_S)
            elif not self._send(parcel):
                self._clock.wait(stop, _RETRY_S)

    def empty(self) -> None:
        """Send what is left as long as it is taken at once."""
        while (parcel := self._outbox.first()) and self._send(parcel):
            pass

    def _send(self, parcel: Parcel) -> bool:
        """Send one parcel and return whether it is done with, by a receipt or for good."""
        try:
            receipt = self._destination.send(parcel)
        except DestinationAway as error:
            self._report(str(error))
            return False
        except ServerRefused as error:
            self._report(f"the gateway refuses: {error}")
            if error.status not in _FINAL_STATUS:
                return False
            self._outbox.refuse(parcel)
            return True
        self._outbox.remove(parcel)
        self.wishes = receipt.wishes
        self.sent += 1
        self.sent_bytes += len(parcel.body)
        self._report(None)
        return True

    def _report(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        self.failures += trouble is not None
        if trouble != self._trouble:
            if trouble:
                _log.warning("batches wait", host=self._host, reason=trouble)
            else:
                _log.info("batches are taken again", host=self._host)
        self._trouble = trouble
