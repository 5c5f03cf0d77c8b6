"""Connections at work, step by step: buffers, credits, acknowledgements, and who waits for what.

A connection has room for two steps on each side. For step k the sender's GPU fills a buffer (SendGPUWait), the sender
waits for the receiver's credit where the transport has one (SendPeerWait), and the network takes the step (SendWait):
on IB until it is acknowledged, on a socket until the kernel has copied the bytes, which it does while its buffer has
room. At the receiver a buffer waits for the step (RecvWait), for the flush (RecvFlushWait) and for the GPU to read
it (RecvGPUWait). A buffer is free again when its step is done, so a index that does not go on stops those behind it:
that is where head-of-line states come from, and nothing else makes them. Only the oldest unfinished step of a side
counts, and its marks are those that the proxy thread of that side sees: one that is stopped sees nothing.

Times are nanoseconds since the scenario began; NEVER stands for what does not happen. See NCCL's net transport.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Times = Floats
Codes = NDArray[np.int8]

NEVER = 1e18
BUFFERS = 2  # a step is one chunk of a ring, which takes four of the eight NCCL_STEPS of a connection
SOCKET_BYTES = 4 << 20  # of a connection that the kernel holds: tcp_wmem's largest

IDLE, GPU_WAIT, PEER_WAIT, WIRE, RECV_WAIT, FLUSH, RECV_GPU_WAIT = range(7)
STATES = ("idle", "gpu_wait", "peer_wait", "wire", "recv_wait", "flush", "recv_gpu_wait")


@dataclass(frozen=True)
class Outage:
    """When something stands still, per element: what would happen in between happens at its end."""

    begin: Times
    end: Times

    def after(self, timestamp: Times) -> Times:
        return np.where((timestamp >= self.begin) & (timestamp < self.end), self.end, timestamp)


@dataclass(frozen=True)
class Edges:
    """Connections of one operation; all arrays have the same shape."""

    step_ns: Times  # the wire is busy so long with one step
    latency_ns: Times  # from the last byte's departure to its arrival, and the same for the acknowledgement
    send_from: Times  # since when the sender's proxy works on the operation
    recv_from: Times  # since when the receiver's proxy does
    has_credits: bool  # IB; a socket has none
    socket_steps: int = 0  # steps that the kernel's buffers hold on each side
    copy_ns: Times | float = 0.0  # of one step into the kernel's buffer
    flush_ns: Times | float = 0.0
    send_proxy_ns: Times | float = 0.0  # a starved proxy thread looks that much later
    recv_proxy_ns: Times | float = 0.0
    wire_out: Outage | None = None
    send_proxy_out: Outage | None = None
    recv_proxy_out: Outage | None = None


@dataclass
class Steps:
    """What was seen of single steps, for operations whose steps are sampled: one array of all edges per step."""

    posted: list[Times] = field(default_factory=list)
    handed: list[Times] = field(default_factory=list)
    sent: list[Times] = field(default_factory=list)
    awaited: list[Times] = field(default_factory=list)
    arrived: list[Times] = field(default_factory=list)
    taken: list[Times] = field(default_factory=list)


@dataclass(frozen=True)
class _Transit:
    """One step on its way: handed to the network, off the wire, arrived, and readable."""

    handed: Times
    left: Times
    arrived: Times
    flushed: Times


class Pairs:
    """Connections while their operation runs; sums of waits and the last marks are read off at the end."""

    def __init__(self, edges: Edges, trace: bool = False, may_stall: bool = True) -> None:
        """`may_stall`: whether a step may never end, so that it is worth looking for the state it stands in."""
        shape = edges.step_ns.shape
        self.edges = edges
        self.gpu_wait, self.peer_wait, self.wire = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.recv_wait, self.flush, self.recv_gpu_wait = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.sent, self.taken = edges.send_from.copy(), edges.recv_from.copy()
        self.send_state = np.full(shape, IDLE, np.int8)
        self.recv_state = np.full(shape, IDLE, np.int8)
        self.stuck_since = np.full((2, *shape), NEVER)
        self.steps = Steps() if trace else None
        self._may_stall = may_stall
        self._free_at = np.full((BUFFERS, *shape), -NEVER)  # when the send buffer of a slot is free again
        self._held = (
            BUFFERS + edges.socket_steps
        )  # what a receiver takes without its GPU: on a socket the kernel helps
        self._read_at = np.full((self._held, *shape), -NEVER)  # when the receive buffer of a slot is
        self._left = np.full(shape, -NEVER)  # when the wire was free
        self._left_at = np.full((max(edges.socket_steps, 1), *shape), -NEVER)
        self._arrived = self._flushed = self._left

    def buffer_free(self, step: int) -> Times:
        """Return when the buffer for a step is free to be filled."""
        free: Times = self._free_at[step % BUFFERS]
        return free

    def arrival(self, step: int, filled: Times) -> Times:
        """Return when the receiver's GPU could read a step if it were filled then; nothing happens yet."""
        return self._travel(step, filled).flushed

    def send(self, step: int, filled: Times) -> Times:
        """Take a step that the GPU filled to the other side and return when the receiver's GPU may read it."""
        transit = self._travel(step, filled)
        self._left, self._arrived, self._flushed = transit.left, transit.arrived, transit.flushed
        seen = filled + self.edges.send_proxy_ns  # the proxy thread marks what it sees, when it sees it
        if self.edges.send_proxy_out:
            seen = self.edges.send_proxy_out.after(seen)
        self._count_send(step, seen, transit.handed, self._end_of_send(step, transit.handed))
        return transit.flushed

    def _travel(self, step: int, filled: Times) -> "_Transit":
        edges = self.edges
        credit = np.maximum(edges.recv_from, self._read_at[(step - BUFFERS) % self._held])
        ready = filled + edges.send_proxy_ns
        handed = np.maximum(ready, credit) if edges.has_credits else ready
        if edges.send_proxy_out:
            handed = edges.send_proxy_out.after(handed)
        begin = np.maximum(handed, self._left)
        if not edges.has_credits:  # the receiving kernel takes what its own buffer holds, and no more
            begin = np.maximum(begin, self._read_at[step % self._held])
        left = self._cross(begin)
        arrived = left + edges.latency_ns
        flushed = np.maximum(arrived, credit) + edges.flush_ns + edges.recv_proxy_ns
        if edges.recv_proxy_out:
            flushed = edges.recv_proxy_out.after(flushed)
        return _Transit(handed, left, arrived, flushed)

    def read(self, step: int, timestamp: Times) -> None:
        """Note when the receiver's GPU read a step; the buffer is posted again then."""
        out, begin = self.edges.recv_proxy_out, self.taken
        seen, arrived = (
            (timestamp, self._arrived) if out is None else (out.after(timestamp), out.after(self._arrived))
        )
        arrived = np.maximum(arrived, begin)
        flushed = np.maximum(self._flushed, arrived)
        taken = np.maximum(seen, flushed)
        self.recv_wait += arrived - begin
        self.flush += flushed - arrived
        self.recv_gpu_wait += taken - flushed
        self._mark_stuck(1, (begin, arrived, flushed, taken), (RECV_WAIT, FLUSH, RECV_GPU_WAIT))
        self.taken = taken
        if self.steps:
            posted = self._read_at[(step - BUFFERS) % self._held]
            self.steps.awaited.append(np.maximum(self.edges.recv_from, posted))
            self.steps.arrived.append(arrived)
            self.steps.taken.append(taken)
        self._read_at[step % self._held] = taken

    def _cross(self, begin: Times) -> Times:
        end = begin + self.edges.step_ns
        if self.edges.wire_out is None:
            return end
        out = self.edges.wire_out
        caught = (begin < out.end) & (end > out.begin)
        return np.where(caught, out.end + self.edges.step_ns, end)  # what was under way is sent again

    def _end_of_send(self, step: int, handed: Times) -> Times:
        edges = self.edges
        if edges.has_credits:
            done = self._arrived + edges.latency_ns
        elif edges.socket_steps:
            slot = step % edges.socket_steps
            done = np.maximum(handed, self._left_at[slot]) + edges.copy_ns
            self._left_at[slot] = self._left
        else:
            done = self._left
        done = done + edges.send_proxy_ns
        return done if edges.send_proxy_out is None else edges.send_proxy_out.after(done)

    def _count_send(self, step: int, filled: Times, handed: Times, done: Times) -> None:
        begin = self.sent
        filled = np.maximum(filled, begin)
        handed = np.maximum(handed, filled)
        done = np.maximum(done, handed)
        self.gpu_wait += filled - begin
        self.peer_wait += handed - filled
        self.wire += done - handed
        self._mark_stuck(0, (begin, filled, handed, done), (GPU_WAIT, PEER_WAIT, WIRE))
        if self.steps:
            self.steps.posted.append(np.maximum(self.edges.send_from, self._free_at[step % BUFFERS]))
            self.steps.handed.append(handed)
            self.steps.sent.append(done)
        self.sent = done
        self._free_at[step % BUFFERS] = done

    def _mark_stuck(self, side: int, marks: tuple[Times, Times, Times, Times], states: tuple[int, int, int]) -> None:
        """Note the state in which a side stands for good, and since when: before the first mark that never comes."""
        if not self._may_stall:
            return
        fresh = (marks[-1] >= NEVER / 2) & (marks[0] < NEVER / 2)
        if not fresh.any():
            return
        kept = self.recv_state if side else self.send_state
        for entered, ended, state in reversed(list(zip(marks, marks[1:], states, strict=False))):
            here = fresh & (ended >= NEVER / 2)
            kept[here] = state
            self.stuck_since[side][here] = entered[here]
