"""The moment in which an operation runs: what the cluster still can, and when each rank comes to it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.collectives import Kernels
from lockstep.sim.communicators import Flows
from lockstep.sim.conditions import Condition, Standstill
from lockstep.sim.network import BYTES_PER_NS, Floats
from lockstep.sim.operations import Operation
from lockstep.sim.placement import Ints
from lockstep.sim.story import ClusterShape
from lockstep.sim.wires import NEVER, SOCKET_BYTES, Edges, Outage, Times

_GPU_BYTES_PER_NS = 500.0  # at which a kernel reduces or copies a step
_MOST_SOCKET_STEPS = 64  # more are hardly ever under way at once, and each takes memory
_INSIDE_NS = 1e3  # from GPU to GPU of a host
_COPY_BYTES_PER_NS = 5.0  # into a socket's buffer, by one core


@dataclass(frozen=True)
class Scene:
    """Times are by world rank; ranks that do not take part have NEVER."""

    shape: ClusterShape
    now: Condition
    still: Standstill | None
    enqueue: Times
    start: Times
    spread: float  # of transfers
    random: np.random.Generator

    def reroute(self, flows: Flows) -> Flows:
        """Return the connections through the NICs that they use now."""
        if (self.now.nics == np.arange(len(self.now.nics))).all():
            return flows
        nics, links = self.now.nics, self.now.links
        return replace(flows, tx_nic=nics[flows.tx_nic], rx_nic=nics[flows.rx_nic], paths=links[flows.paths])

    def rates(self, flows: Flows) -> Floats:
        """Return bytes per nanosecond of each connection while all of them send."""
        rates = flows.rates(self.now.capacity, self.shape.nvlink_gbps * BYTES_PER_NS)
        inside = np.minimum(self.now.nvlink[flows.src], self.now.nvlink[flows.dst])
        outside = np.minimum(self.now.pcie[flows.src], self.now.pcie[flows.dst])
        return rates * np.where(flows.crosses, outside, inside)

    def kernels(self, ranks: Ints, chunk: float) -> Kernels:
        return Kernels(
            self.start[ranks], chunk / _GPU_BYTES_PER_NS, outage_of(self.still.gpus if self.still else None, ranks)
        )

    def edges(self, flows: Flows, chunk: Floats | float, rates: Floats) -> Edges:
        """Return the connections, each about to move steps of `chunk` bytes."""
        is_socket = self.shape.transport == "socket"
        jitter = self.random.normal(1.0, self.spread, flows.src.shape).clip(0.5)
        hop_ns = np.where(flows.crosses, self.shape.hop_latency_us * 1e3, _INSIDE_NS)
        proxies = self.still.proxies if self.still else None
        return Edges(
            step_ns=chunk / rates * jitter,
            latency_ns=hop_ns + self.now.delay_ns[flows.paths].sum(axis=-1),
            send_from=self.enqueue[flows.src],
            recv_from=self.enqueue[flows.dst],
            has_credits=not is_socket,
            socket_steps=_socket_steps(float(np.mean(chunk))) if is_socket else 0,
            copy_ns=chunk / _COPY_BYTES_PER_NS,
            send_proxy_ns=self.now.proxy_ns[flows.src] * flows.crosses,
            recv_proxy_ns=self.now.proxy_ns[flows.dst] * flows.crosses,
            wire_out=self._wire_outage(flows),
            send_proxy_out=_proxy_outage(proxies, flows.src, flows.crosses),
            recv_proxy_out=_proxy_outage(proxies, flows.dst, flows.crosses),
        )

    def _wire_outage(self, flows: Flows) -> Outage | None:
        """Return when a connection stands still: with the first link of its way to do so."""
        if self.still is None:
            return None
        begins = self.still.links.begin[flows.paths]
        first = begins.argmin(axis=-1)[..., None]
        begin = np.take_along_axis(begins, first, axis=-1)[..., 0]
        if begin.min() >= NEVER:
            return None
        return Outage(begin, np.take_along_axis(self.still.links.end[flows.paths], first, axis=-1)[..., 0])


def _socket_steps(chunk: float) -> int:
    return int(min(SOCKET_BYTES // max(chunk, 1.0), _MOST_SOCKET_STEPS))


def outage_of(outage: Outage | None, ranks: Ints) -> Outage | None:
    """Return when some ranks stand still, or None when none of them does."""
    if outage is None or outage.begin[ranks].min() >= NEVER:
        return None
    return Outage(outage.begin[ranks], outage.end[ranks])


def _proxy_outage(outage: Outage | None, ranks: Ints, crosses: NDArray[np.bool_]) -> Outage | None:
    """Return when proxy threads stand still; inside a host GPUs reach each other without them."""
    mine = outage_of(outage, ranks)
    return mine and Outage(np.where(crosses, mine.begin, NEVER), np.where(crosses, mine.end, NEVER))


def resume(outage: Outage | None, moments: Times, ranks: Ints) -> Times:
    """Return when something happens that some ranks are about to do."""
    mine = outage_of(outage, ranks)
    return np.minimum(moments if mine is None else mine.after(moments), NEVER)


def stretch(outage: Outage | None, begin: Times, end: Times, ranks: Ints) -> Times:
    """Return when something ends that some ranks do from `begin` on, and that stands still with them."""
    mine = outage_of(outage, ranks)
    if mine is None:
        return end
    caught = (begin < mine.end) & (end > mine.begin)
    return np.where(caught, mine.end + end - np.maximum(begin, mine.begin), end)


def keep_untold(operation: Operation, still: Standstill | None) -> Operation:
    """Leave out what nobody hears of: a process that never goes on says nothing of what its GPU still does."""
    silent = outage_of(still.proxies if still else None, operation.rank)
    if silent is None:
        return operation
    start, end = (
        np.where((moment >= silent.begin) & (silent.end >= NEVER), NEVER, moment)
        for moment in (operation.start, operation.end)
    )
    return replace(operation, start=start, end=end)
