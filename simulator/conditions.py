"""The state of a cluster at a time of its scenario: what links, GPUs and hosts can still do, what stands still."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.clock import NS_PER_S
from simulator.collectives import Kernels
from simulator.faults import Fault, active_faults, healed_s
from simulator.job import Placement
from simulator.network import BYTES_PER_NS, Flows, Network
from simulator.pairs import NEVER, SOCKET_BYTES, Edges, Floats, Ints, Outage, Times
from simulator.scenario import ClusterShape, Noise

_OUTAGES = ("down", "over", "stuck", "gone", "stopped", "killed")
PROXY_NS = 5e5  # a starved proxy thread looks that much later per share of a core that it lacks
_SOCKET_LOSS, _IB_LOSS = 0.05, 0.002  # loss at which half of the rate is left: TCP repairs, RoCE goes back


@dataclass(frozen=True)
class Condition:
    """What is left of every part; shares of the healthy rate, and nanoseconds on top."""

    capacity: Floats  # per directed link, in bytes per nanosecond
    delay_ns: Floats  # per directed link
    compute: Floats  # per rank
    pcie: Floats  # per rank: between GPU and NIC
    nvlink: Floats  # per rank: between GPU and GPU
    cpu: Floats  # per rank
    late_ns: Floats  # per rank
    links: Ints  # which directed link stands in for each: itself, unless its NIC has failed over
    nics: Ints  # likewise for NICs, counted over the cluster

    @property
    def proxy_ns(self) -> Floats:
        return PROXY_NS * (1 / self.cpu - 1)


@dataclass(frozen=True)
class Outages:
    """What does not move, and from when to when."""

    links: Outage  # per directed link
    gpus: Outage  # per rank
    proxies: Outage  # per rank


class Conditions:
    """Answers about one attempt of a scenario; the same question is answered once."""

    def __init__(
        self,
        timeline: tuple[Fault, ...],
        network: Network,
        placement: Placement,
        transport: str,
        begin_ns: float = 0.0,
    ) -> None:
        self._timeline, self._network, self._placement = timeline, network, placement
        self._half_loss = _IB_LOSS if transport == "ib" else _SOCKET_LOSS
        self._known: dict[tuple[object, ...], Condition] = {}
        hard = [fault for fault in timeline if fault.effect in _OUTAGES]
        # Processes of an attempt before are no more.
        self._hard = [fault for fault in hard if fault.kind != "rank" or fault.at_s * NS_PER_S >= begin_ns]

    def at(self, now_ns: float, size: int, spared: frozenset[Fault] = frozenset()) -> Condition:
        """Return the condition for operations of a size; `spared` are faults that spare this step."""
        faults = [fault for fault in active_faults(self._timeline, now_ns / NS_PER_S) if fault not in spared]
        faults = [fault for fault in faults if fault.above_bytes <= size]
        key = tuple((fault, round(fault.level(now_ns / NS_PER_S), 2)) for fault in faults)
        if key not in self._known:
            self._known[key] = self._judge(key)
        return self._known[key]

    def outages(self, now_ns: float) -> Outages | None:
        """Return what stands still from a moment on, each thing once: the first time that is not over yet."""
        if not self._hard:
            return None
        ranks, links = self._placement.ranks, len(self._network.capacity)
        begins = [np.full(size, NEVER) for size in (links, ranks, ranks)]
        ends = [np.full(size, NEVER) for size in (links, ranks, ranks)]
        for fault in self._hard:
            begin, end = self._interval(fault, now_ns)
            for kind, numbers in self._still(fault):
                sooner = [number for number in numbers if begin < begins[kind][number]]
                begins[kind][sooner], ends[kind][sooner] = begin, end
        return Outages(*(Outage(begin, end) for begin, end in zip(begins, ends, strict=True)))

    def _still(self, fault: Fault) -> Iterator[tuple[int, list[int]]]:
        if fault.effect in ("down", "over"):
            yield 0, self.links_of(fault)
        if fault.effect in ("stuck", "killed", "gone"):
            yield 1, self._ranks(fault)
        if fault.effect in ("stopped", "killed", "gone"):
            yield 2, self._ranks(fault)

    def _interval(self, fault: Fault, now_ns: float) -> tuple[float, float]:
        begin, now_s = fault.at_s, now_ns / NS_PER_S
        if fault.every_s and fault.lasting_s is not None:
            begin += max(np.floor((now_s - fault.at_s - fault.lasting_s) / fault.every_s) + 1, 0) * fault.every_s
        end = min(healed_s(fault, self._timeline), NEVER / NS_PER_S)
        lasting_s = fault.stall_s if fault.effect == "over" else fault.lasting_s
        if lasting_s is not None:
            end = min(end, begin + lasting_s)
        if begin >= end or end <= now_s:
            return NEVER, NEVER
        return begin * NS_PER_S, min(end * NS_PER_S, NEVER)

    def _judge(self, faults: tuple[tuple[Fault, float], ...]) -> Condition:
        ranks, links = self._placement.ranks, len(self._network.capacity)
        whole = {name: np.ones(ranks) for name in ("compute", "pcie", "nvlink", "cpu")}
        delays = {"delay_ns": np.zeros(links), "late_ns": np.zeros(ranks)}
        shape = self._placement.shape
        there = Condition(
            capacity=self._network.capacity.copy(),
            links=np.arange(links),
            nics=np.arange(shape.all_hosts * shape.nics_per_host),
            **whole,
            **delays,
        )
        for fault, level in faults:
            self._apply(there, fault, level)
        return there

    def _apply(self, there: Condition, fault: Fault, level: float) -> None:
        amount = fault.amount if fault.amount is not None else 0.0
        left = 1 - (1 - amount) * level
        match fault.effect:
            case "rate" if fault.kind in ("gpu", "pcie", "nvlink"):
                rates = {"gpu": there.compute, "pcie": there.pcie, "nvlink": there.nvlink}[fault.kind]
                rates[self._ranks(fault)] *= left
            case "rate":
                there.capacity[self.links_of(fault)] *= left
            case "losing":
                there.capacity[self.links_of(fault)] /= 1 + (amount * level / self._half_loss) ** 2
            case "over" if level >= 1:
                nics = [self._nic(fault.name), self._nic(f"{fault.name.partition('/')[0]}/{fault.spare}")]
                there.nics[nics[0]] = nics[1]
                old, new = (list(self._network.links_of_nic(nic)) for nic in nics)
                there.links[old] = new
            case "delayed":
                there.delay_ns[self.links_of(fault)] += amount * level * NS_PER_S
            case "starved":
                there.cpu[self._ranks(fault)] *= left
            case "late":
                there.late_ns[self._ranks(fault)] += amount * level * NS_PER_S

    def links_of(self, fault: Fault) -> list[int]:
        """Return the directed links that a fault concerns."""
        network = self._network
        if fault.kind == "switch":
            return network.links_at(fault.name)
        if fault.kind == "link":
            there, back = network.links_of(fault.name)
        elif fault.kind == "nic":
            there, back = network.links_of_nic(self._nic(fault.name))
        else:
            return [int(link) for link in network.links_between_switches()]
        return [there] if fault.side == "tx" else [back] if fault.side == "rx" else [there, back]

    def _nic(self, name: str) -> int:
        """Return the number of a NIC in the cluster by its name, such as h3/eth1."""
        host, nic = name.split("/")
        return int(host.removeprefix("h")) * self._placement.shape.nics_per_host + int(nic.removeprefix("eth"))

    def _ranks(self, fault: Fault) -> list[int]:
        """Return the ranks that a part carries; a host that is not in the job carries none."""
        if fault.kind == "rank":
            return [int(fault.name)] if int(fault.name) < self._placement.ranks else []
        host, _, gpu = fault.name.partition("/")
        mine = self._placement.host_of == int(host.removeprefix("h"))
        if gpu:
            mine &= self._placement.gpu_of == int(gpu)
        return [int(rank) for rank in np.flatnonzero(mine)]


_GPU_BYTES_PER_NS = 500.0  # at which a kernel reduces or copies a step
_MOST_SOCKET_STEPS = 64  # more are hardly ever under way at once, and each takes memory
_INSIDE_NS = 1e3  # from GPU to GPU of a host
_COPY_BYTES_PER_NS = 5.0  # into a socket's buffer, by one core
_TAIL_INDEX, _TAIL_SCALE, _LONGEST = 1.5, 5.0, 10.0  # of a Pareto variable: the mean exists, the variance does not


def draw_jitter(random: np.random.Generator, spread: float, tail: float, shape: int | tuple[int, ...]) -> Floats:
    """Return by which factor each of some things takes longer than it should; a share of them has a Pareto tail."""
    jitter: Floats = random.normal(1.0, spread, shape).clip(0.5)
    if not tail:
        return jitter
    excess = random.pareto(_TAIL_INDEX, shape) * _TAIL_SCALE * spread * (random.random(shape) < tail)
    tailed: Floats = jitter + excess.clip(max=_LONGEST)
    return tailed


@dataclass(frozen=True)
class Scene:
    """Times are by world rank; ranks that do not take part have NEVER."""

    shape: ClusterShape
    now: Condition
    still: Outages | None
    enqueue: Times
    start: Times
    noise: Noise
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
        out = outage_of(self.still.gpus if self.still else None, ranks)
        return Kernels(self.start[ranks], chunk / _GPU_BYTES_PER_NS, out)

    def edges(self, flows: Flows, chunk: Floats | float, rates: Floats) -> Edges:
        """Return the connections, each about to move steps of `chunk` bytes."""
        is_socket = self.shape.transport == "socket"
        jitter = draw_jitter(self.random, self.noise.transfer, self.noise.tail, flows.src.shape)
        hop_ns = np.where(flows.crosses, self.shape.hop_latency_us * 1e3, _INSIDE_NS)
        proxies = self.still.proxies if self.still else None
        socket_steps = int(min(SOCKET_BYTES // max(float(np.mean(chunk)), 1.0), _MOST_SOCKET_STEPS))
        return Edges(
            step_ns=chunk / rates * jitter,
            latency_ns=hop_ns + self.now.delay_ns[flows.paths].sum(axis=-1),
            send_from=self.enqueue[flows.src],
            recv_from=self.enqueue[flows.dst],
            has_credits=not is_socket,
            socket_steps=socket_steps if is_socket else 0,
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


def outage_of(outage: Outage | None, ranks: Ints) -> Outage | None:
    """Return when some ranks stand still, or None when none of them does."""
    if outage is None or outage.begin[ranks].min() >= NEVER:
        return None
    return Outage(outage.begin[ranks], outage.end[ranks])


def _proxy_outage(outage: Outage | None, ranks: Ints, crosses: NDArray[np.bool_]) -> Outage | None:
    """Return when proxy threads stand still; inside a host GPUs reach each other without them."""
    mine = outage_of(outage, ranks)
    return mine and Outage(np.where(crosses, mine.begin, NEVER), np.where(crosses, mine.end, NEVER))


def resume(outage: Outage | None, timestamps: Times, ranks: Ints) -> Times:
    """Return when something happens that some ranks are about to do."""
    mine = outage_of(outage, ranks)
    return np.minimum(timestamps if mine is None else mine.after(timestamps), NEVER)


def stretch(outage: Outage | None, begin: Times, end: Times, ranks: Ints) -> Times:
    """Return when something ends that some ranks do from `begin` on, and that stands still with them."""
    mine = outage_of(outage, ranks)
    if mine is None:
        return end
    caught = (begin < mine.end) & (end > mine.begin)
    return np.where(caught, mine.end + end - np.maximum(begin, mine.begin), end)
