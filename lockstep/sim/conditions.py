"""The state of a cluster at a moment of its story: what links, GPUs and hosts can still do, and what stands still."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.sim.network import Floats, Network
from lockstep.sim.placement import Ints, Placement
from lockstep.sim.timeline import Turn, turns_now
from lockstep.sim.wires import NEVER, Outage

_STANDSTILLS = ("down", "over", "stuck", "gone", "stopped", "killed")
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
class Standstill:
    """What does not move, and from when to when."""

    links: Outage  # per directed link
    gpus: Outage  # per rank
    proxies: Outage  # per rank


class Conditions:
    """Answers about one attempt of a story; the same question is answered once."""

    def __init__(
        self,
        timeline: tuple[Turn, ...],
        network: Network,
        placement: Placement,
        transport: str,
        begin_ns: float = 0.0,
    ) -> None:
        self._timeline, self._network, self._placement = timeline, network, placement
        self._half_loss = _IB_LOSS if transport == "ib" else _SOCKET_LOSS
        self._known: dict[tuple[object, ...], Condition] = {}
        self._hard = [turn for turn in timeline if turn.effect in _STANDSTILLS and self._concerns(turn, begin_ns)]

    @staticmethod
    def _concerns(turn: Turn, begin_ns: float) -> bool:
        """Say whether the attempt that began then feels it: processes of an attempt before are no more."""
        return turn.kind != "rank" or turn.at_s * NS_PER_S >= begin_ns

    def at(self, now_ns: float, size: int, lucky: frozenset[Turn] = frozenset()) -> Condition:
        """Return the condition for operations of a size; `lucky` are turns that spare this step."""
        turns = [turn for turn in turns_now(self._timeline, now_ns / NS_PER_S) if turn not in lucky]
        turns = [turn for turn in turns if turn.above_bytes <= size]
        key = tuple((turn, round(turn.level(now_ns / NS_PER_S), 2)) for turn in turns)
        if key not in self._known:
            self._known[key] = self._judge(key)
        return self._known[key]

    def standstill(self, now_ns: float) -> Standstill | None:
        """Return what stands still from a moment on, each thing once: the first time that is not over yet."""
        if not self._hard:
            return None
        ranks, links = self._placement.ranks, len(self._network.capacity)
        begins = [np.full(size, NEVER) for size in (links, ranks, ranks)]
        ends = [np.full(size, NEVER) for size in (links, ranks, ranks)]
        for turn in self._hard:
            begin, end = self._interval(turn, now_ns)
            for kind, numbers in self._still(turn):
                sooner = [number for number in numbers if begin < begins[kind][number]]
                begins[kind][sooner], ends[kind][sooner] = begin, end
        return Standstill(*(Outage(begin, end) for begin, end in zip(begins, ends, strict=True)))

    def _still(self, turn: Turn) -> Iterator[tuple[int, list[int]]]:
        if turn.effect in ("down", "over"):
            yield 0, self.links_of(turn)
        if turn.effect in ("stuck", "killed", "gone"):
            yield 1, self._ranks(turn)
        if turn.effect in ("stopped", "killed", "gone"):
            yield 2, self._ranks(turn)

    def _interval(self, turn: Turn, now_ns: float) -> tuple[float, float]:
        begin, now_s = turn.at_s, now_ns / NS_PER_S
        if turn.every_s and turn.lasting_s is not None:
            begin += max(np.floor((now_s - turn.at_s - turn.lasting_s) / turn.every_s) + 1, 0) * turn.every_s
        heals = (other.at_s for other in self._timeline if other.effect == "heal" and other.part in (None, turn.part))
        end = min((moment for moment in heals if moment > turn.at_s), default=NEVER / NS_PER_S)
        lasting_s = turn.stall_s if turn.effect == "over" else turn.lasting_s
        if lasting_s is not None:
            end = min(end, begin + lasting_s)
        if begin >= end or end <= now_s:
            return NEVER, NEVER
        return begin * NS_PER_S, min(end * NS_PER_S, NEVER)

    def _judge(self, turns: tuple[tuple[Turn, float], ...]) -> Condition:
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
        for turn, level in turns:
            self._apply(there, turn, level)
        return there

    def _apply(self, there: Condition, turn: Turn, level: float) -> None:
        amount = turn.amount if turn.amount is not None else 0.0
        left = 1 - (1 - amount) * level
        match turn.effect:
            case "rate" if turn.kind in ("gpu", "pcie", "nvlink"):
                rates = {"gpu": there.compute, "pcie": there.pcie, "nvlink": there.nvlink}[turn.kind]
                rates[self._ranks(turn)] *= left
            case "rate":
                there.capacity[self.links_of(turn)] *= left
            case "losing":
                there.capacity[self.links_of(turn)] /= 1 + (amount * level / self._half_loss) ** 2
            case "over" if level >= 1:
                nics = [self._nic(turn.name), self._nic(f"{turn.name.partition('/')[0]}/{turn.spare}")]
                there.nics[nics[0]] = nics[1]
                old, new = (list(self._network.links_of_nic(nic)) for nic in nics)
                there.links[old] = new
            case "delayed":
                there.delay_ns[self.links_of(turn)] += amount * level * NS_PER_S
            case "starved":
                there.cpu[self._ranks(turn)] *= left
            case "late":
                there.late_ns[self._ranks(turn)] += amount * level * NS_PER_S

    def links_of(self, turn: Turn) -> list[int]:
        """Return the directed links that a turn concerns."""
        network = self._network
        if turn.kind == "switch":
            return network.links_at(turn.name)
        if turn.kind == "link":
            there, back = network.links_of(turn.name)
        elif turn.kind == "nic":
            there, back = network.links_of_nic(self._nic(turn.name))
        else:
            return [int(link) for link in network.links_between_switches()]
        return [there] if turn.side == "tx" else [back] if turn.side == "rx" else [there, back]

    def _nic(self, name: str) -> int:
        """Return the number of a NIC in the cluster by its name, such as h3/eth1."""
        host, nic = name.split("/")
        return int(host.removeprefix("h")) * self._placement.shape.nics_per_host + int(nic.removeprefix("eth"))

    def _ranks(self, turn: Turn) -> list[int]:
        """Return the ranks that a part carries; a host that is not in the job carries none."""
        if turn.kind == "rank":
            return [int(turn.name)] if int(turn.name) < self._placement.ranks else []
        host, _, gpu = turn.name.partition("/")
        mine = self._placement.host_of == int(host.removeprefix("h"))
        if gpu:
            mine &= self._placement.gpu_of == int(gpu)
        return [int(rank) for rank in np.flatnonzero(mine)]
