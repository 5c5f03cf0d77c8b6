"""One attempt of a job: runs its waves on whatever the cluster still can, and says what each operation did."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep.sim.communicators import Communicators, Flows
from lockstep.sim.conditions import Condition, Conditions, Standstill
from lockstep.sim.flights import fly_pairs, fly_ring, fly_tree
from lockstep.sim.network import Floats, Network
from lockstep.sim.operations import Operation
from lockstep.sim.placement import Ints, Placement
from lockstep.sim.scene import Scene, keep_untold, resume, stretch
from lockstep.sim.schedule import Collective, Compute, Exchange, Handover, Wave
from lockstep.sim.story import GroupKind, Story
from lockstep.sim.timeline import Turn
from lockstep.sim.wires import NEVER, Times

_LAUNCH_NS, _KERNEL_NS = 2e4, 5e3  # the host's work to enqueue something; from the launch to the kernel
_MISMATCH = 2  # a rank with the wrong arguments has so many times the bytes


class Running:
    """The attempt of a job on some hosts, from a moment on.

    `host` and `stream` say since when each rank's thread and its GPU are free. The thread runs ahead of the GPU, as
    it does in PyTorch, until the end of a step.
    """

    def __init__(self, story: Story, placement: Placement, network: Network, attempt: int, begin_ns: float) -> None:
        self.story, self.placement, self.attempt = story, placement, attempt
        self.host: Times = np.full(placement.ranks, begin_ns)
        self.stream: Times = np.full(placement.ranks, begin_ns)
        self.conditions = Conditions(story.timeline, network, placement, story.cluster.transport, begin_ns)
        self.lucky: frozenset[Turn] = frozenset()  # failures that spare this step
        self.compute_factor = np.ones(placement.ranks)
        self.wrong: set[int] = set()  # ranks that come with other arguments than the rest
        self.astray: dict[int, Wave] = {}  # what ranks leave out to enter another communicator first
        self._network = network
        self._comms: dict[GroupKind, Communicators] = {}
        self._rates: dict[tuple[object, ...], Floats] = {}
        self._counts: dict[tuple[GroupKind, str], Ints] = {}

    def comms(self, kind: GroupKind) -> Communicators:
        if kind not in self._comms:
            self._comms[kind] = Communicators(kind, self.placement, self._network, self.attempt)
        return self._comms[kind]

    def run(self, wave: Wave, random: np.random.Generator) -> Iterator[Operation]:
        """Run a wave and yield its operations; ranks that stand still never get on."""
        match wave:
            case Compute():
                self._compute(wave, random)
            case Collective():
                yield self._collective(wave, random)
            case Exchange():
                yield from self._exchange(wave, random)
            case Handover():
                sizes = np.full(len(wave.groups), wave.bytes)
                ends = (wave.groups, wave.src_stage, wave.dst_stage)
                yield from self._pairs(self.comms("pp"), ends, sizes, random, does_sender_wait=False)

    def _compute(self, wave: Compute, random: np.random.Generator) -> None:
        ranks = wave.ranks
        now, still = self._state(ranks)
        jitter = random.normal(1.0, self.story.noise.compute, len(ranks)).clip(0.5)
        self.host[ranks] = np.minimum(self.host[ranks] + _LAUNCH_NS / now.cpu[ranks], NEVER)
        spent = wave.ns * jitter * self.compute_factor[ranks] / now.compute[ranks]
        begin = np.maximum(self.stream[ranks], self.host[ranks])
        self.stream[ranks] = np.minimum(stretch(still.gpus if still else None, begin, begin + spent, ranks), NEVER)

    def _collective(self, wave: Collective, random: np.random.Generator) -> Operation:
        comms = self.comms(wave.kind)
        members = comms.members[wave.groups]
        left_out = frozenset(rank for rank, left in self.astray.items() if left is wave)
        scene = self._scene(members.ravel(), wave.bytes, random, left_out)
        ranks = members.ravel()
        operation = Operation(
            attempt=self.attempt,
            comms=comms,
            func=wave.func,
            algo=wave.algo,
            group=np.repeat(wave.groups, comms.size),
            place=np.tile(np.arange(comms.size), len(members)),
            rank=ranks,
            peer=np.full(len(ranks), -1),
            seq=np.repeat(self._count(comms, wave), comms.size),
            bytes=np.full(len(ranks), wave.bytes),
            enqueue=scene.enqueue[ranks],
            start=scene.start[ranks],
            end=np.full(len(ranks), NEVER),
        )
        scene, operation = self._mistake(scene, operation)
        fly = fly_tree if wave.algo == "TREE" and comms.size > 2 else fly_ring
        operation = fly(operation, wave, scene, self._rates_of)
        self.stream[ranks] = np.where(
            np.isin(ranks, list(left_out)), self.stream[ranks], np.maximum(self.stream[ranks], operation.end)
        )
        return keep_untold(operation, scene.still)

    def _exchange(self, wave: Exchange, random: np.random.Generator) -> Iterator[Operation]:
        comms = self.comms(wave.kind)
        if comms.size < 2:
            return
        src, dst = (np.tile(side, len(comms.members)) for side in np.nonzero(~np.eye(comms.size, dtype=bool)))
        group = np.repeat(np.arange(len(comms.members)), comms.size * (comms.size - 1))
        weights = random.lognormal(0.0, self.story.job.experts, len(src))
        sizes = np.maximum(wave.bytes / comms.size * weights, 1).astype(np.int64)
        yield from self._pairs(comms, (group, src, dst), sizes, random, does_sender_wait=True)

    def _pairs(
        self,
        comms: Communicators,
        ends: tuple[Ints, Ints, Ints],
        sizes: Ints,
        random: np.random.Generator,
        does_sender_wait: bool,
    ) -> Iterator[Operation]:
        """Yield the sends and the receives of some pairs, which go on next to each other."""
        flows = comms.pair_flows(*ends)
        everyone = np.unique(np.concatenate([flows.src, flows.dst]))
        scene = self._scene(everyone, int(sizes.mean()), random, frozenset())
        for operation in fly_pairs(self.attempt, comms, flows, sizes, scene, self._rates_of):
            if operation.func == "Recv" or does_sender_wait:
                np.maximum.at(self.stream, operation.rank, operation.end)
            yield keep_untold(replace(operation, seq=self._count_pairs(operation)), scene.still)

    # When and how an operation begins.

    def _state(self, ranks: Ints, size: int = 0) -> tuple[Condition, Standstill | None]:
        moment = float(self.stream[ranks].min())
        return self.conditions.at(moment, size, self.lucky), self.conditions.standstill(moment)

    def _scene(self, ranks: Ints, size: int, random: np.random.Generator, left_out: frozenset[int]) -> Scene:
        now, still = self._state(ranks, size)
        late = np.abs(random.normal(0.0, self.story.noise.enqueue_us * 1e3, len(ranks)))
        told = resume(still.proxies if still else None, self.host[ranks] + _LAUNCH_NS / now.cpu[ranks] + late, ranks)
        enqueue, start = np.full(self.placement.ranks, NEVER), np.full(self.placement.ranks, NEVER)
        enqueue[ranks] = told
        begun = np.maximum(self.stream[ranks], told) + _KERNEL_NS
        start[ranks] = resume(still.gpus if still else None, begun, ranks)
        absent = list(left_out)
        enqueue[absent] = start[absent] = NEVER
        self.host[ranks] = np.where(np.isin(ranks, absent), self.host[ranks], enqueue[ranks])
        noise = self.story.noise.transfer
        return Scene(self.story.cluster, now, still, enqueue, start, noise, random)

    def _rates_of(self, key: tuple[object, ...], flows: Flows, scene: Scene) -> Floats:
        """Return the rates of some connections, worked out once for each state of the cluster."""
        known = (*key, id(scene.now))
        if known not in self._rates:
            self._rates[known] = scene.rates(flows)
        return self._rates[known]

    def _mistake(self, scene: Scene, operation: Operation) -> tuple[Scene, Operation]:
        """Have ranks with wrong arguments stop in the middle, which stops everybody."""
        at_fault = np.isin(operation.rank, list(self.wrong))
        if not at_fault.any():
            return scene, operation
        start = scene.start.copy()
        start[operation.rank[at_fault]] = NEVER
        sizes = np.where(at_fault, operation.bytes * _MISMATCH, operation.bytes)
        return replace(scene, start=start), replace(operation, bytes=sizes)

    def _count(self, comms: Communicators, wave: Collective) -> Ints:
        counts = self._counts.setdefault((wave.kind, wave.func), np.zeros(len(comms.members), np.int64))
        seq = counts[wave.groups].copy()
        counts[wave.groups] += 1
        return seq

    def _count_pairs(self, operation: Operation) -> Ints:
        comms, size = operation.comms, operation.comms.size
        shape = (len(comms.members), size, size)
        counts = self._counts.setdefault((comms.kind, operation.func), np.zeros(shape, np.int64))
        key = (operation.group, operation.place, operation.peer)
        seq = counts[key].copy()
        np.add.at(counts, key, 1)
        return seq
