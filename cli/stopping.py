"""The word to stop, without a moment at which it could be missed.

A handler that sets an event is not enough: a signal that comes just before the main thread begins to wait is noted
and wakes nobody, and one that comes while that thread holds the event's lock waits for itself. A byte stays.
"""

import os
import signal


class StopSignals:
    """What SIGINT and SIGTERM say from now on; for the main thread."""

    def __init__(self) -> None:
        self._told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return when one has come, also where it came before."""
        os.read(self._told, 1)
