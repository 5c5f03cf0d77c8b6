"""A ring all-reduce, step by step: when each place may send, how long the wire takes, who waits for whom.

With n places there are 2 (n - 1) steps. A place sends its next chunk when the previous one is acknowledged and
the data has come in from the place before it:

    begin[s, i] = max(end[s-1, i], end[s-1, i-1])          end[s, i] = begin[s, i] + wire[i]

so a slow edge holds up everyone within one operation, while only its own wire time grows. Buffers are unbounded
and links are shared only at the NICs; both are stated limits of this model. Cost: O(steps * places) per channel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True)
class RingTimes:
    """What every place of every ring saw, in nanoseconds; arrays are (channels, places)."""

    gpu_wait: Times  # sender: waited for data to send
    wire: Times  # sender: waited for acknowledgements
    recv_wait: Times  # receiver (the place after): waited for data to come in
    first: Times  # begin of the first send
    last: Times  # end of the last send
    done: Times  # when the last chunk had arrived at the place


def run_ring(ready: Times, wire: Times) -> RingTimes:
    """Return the times of one all-reduce; `ready` is when each place starts, `wire` the time per chunk and edge.

    >>> times = run_ring(np.zeros((1, 4)), np.full((1, 4), 10.0))
    >>> float(times.done.max())  # 2 (n - 1) steps of 10
    60.0
    """
    places = ready.shape[1]
    end = ready.copy()
    arrived = ready.copy()
    gpu_wait = np.zeros_like(ready)
    recv_wait = np.zeros_like(ready)
    for step in range(2 * (places - 1)):
        begin = np.maximum(end, arrived) if step else ready
        gpu_wait += begin - end
        end = begin + wire
        incoming = np.roll(end, 1, axis=1)
        recv_wait += np.maximum(incoming - arrived, 0.0)
        arrived = np.maximum(incoming, arrived)
    return RingTimes(
        gpu_wait=gpu_wait,
        wire=wire * 2 * (places - 1),
        recv_wait=np.roll(recv_wait, -1, axis=1),
        first=ready,
        last=end,
        done=np.maximum(arrived, end),
    )
