"""A scenario as it runs: training steps in order, attempt after attempt, each turned into operations of its ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lockstep.clock import NS_PER_S
from simulator.conditions import Condition, Conditions, Outages, Scene, draw_jitter, outage_of, resume, stretch
from simulator.faults import Fault, active_faults
from simulator.job import Collective, Compute, Exchange, Handover, Placement, Wave, place_ranks, plan_step, swap_order
from simulator.network import Communicators, Flows, Network
from simulator.operations import Operation, simulate_pairs, simulate_ring, simulate_tree
from simulator.pairs import NEVER, Floats, Ints, Times
from simulator.scenario import GroupKind, Scenario, build_topology

_LAUNCH_NS, _KERNEL_NS = 2e4, 5e3  # the host's work to enqueue something; from the launch to the kernel
_MISMATCH = 2  # a rank with the wrong arguments has so many times the bytes


class Running:
    """The attempt of a job on some hosts, from a moment on.

    `host` and `stream` say since when each rank's thread and its GPU are free. The thread runs ahead of the GPU, as
    it does in PyTorch, until the end of a step.
    """

    def __init__(
        self, scenario: Scenario, placement: Placement, network: Network, attempt: int, begin_ns: float
    ) -> None:
        self.scenario, self.placement, self.attempt = scenario, placement, attempt
        self.host: Times = np.full(placement.ranks, begin_ns)
        self.stream: Times = np.full(placement.ranks, begin_ns)
        self.conditions = Conditions(scenario.timeline, network, placement, scenario.cluster.transport, begin_ns)
        self.spared: frozenset[Fault] = frozenset()  # failures that spare this step
        self.compute_factor = np.ones(placement.ranks)
        self.wrong: set[int] = set()  # ranks that come with other arguments than the rest
        self.misordered: dict[int, Wave] = {}  # what ranks leave out to enter another communicator first
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
        noise = self.scenario.noise
        jitter = draw_jitter(random, noise.compute, noise.tail, len(ranks))
        self.host[ranks] = np.minimum(self.host[ranks] + _LAUNCH_NS / now.cpu[ranks], NEVER)
        spent = wave.ns * jitter * self.compute_factor[ranks] / now.compute[ranks]
        begin = np.maximum(self.stream[ranks], self.host[ranks])
        self.stream[ranks] = np.minimum(stretch(still.gpus if still else None, begin, begin + spent, ranks), NEVER)

    def _collective(self, wave: Collective, random: np.random.Generator) -> Operation:
        comms = self.comms(wave.kind)
        members = comms.members[wave.groups]
        ranks = members.ravel()
        left_out = [rank for rank, left in self.misordered.items() if left is wave]
        scene = self._scene(ranks, wave.bytes, random, left_out)
        operation = Operation(
            attempt=self.attempt,
            comms=comms,
            func=wave.func,
            algo=wave.algo,
            group=np.repeat(wave.groups, comms.size),
            index=np.tile(np.arange(comms.size), len(members)),
            rank=ranks,
            peer=np.full(len(ranks), -1),
            seq=np.repeat(self._count(comms, wave), comms.size),
            bytes=np.full(len(ranks), wave.bytes),
            enqueue=scene.enqueue[ranks],
            start=scene.start[ranks],
            end=np.full(len(ranks), NEVER),
        )
        scene, operation = self._mistake(scene, operation)
        simulate = simulate_tree if wave.algo == "TREE" and comms.size > 2 else simulate_ring
        operation = simulate(operation, wave, scene, self._rates_of)
        ended = np.maximum(self.stream[ranks], operation.end)
        self.stream[ranks] = np.where(np.isin(ranks, left_out), self.stream[ranks], ended)
        return drop_unreported(operation, scene.still)

    def _exchange(self, wave: Exchange, random: np.random.Generator) -> Iterator[Operation]:
        comms = self.comms(wave.kind)
        if comms.size < 2:
            return
        src, dst = (np.tile(side, len(comms.members)) for side in np.nonzero(~np.eye(comms.size, dtype=bool)))
        group = np.repeat(np.arange(len(comms.members)), comms.size * (comms.size - 1))
        weights = random.lognormal(0.0, self.scenario.job.experts, len(src))
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
        scene = self._scene(everyone, int(sizes.mean()), random)
        for operation in simulate_pairs(self.attempt, comms, flows, sizes, scene, self._rates_of):
            if operation.func == "Recv" or does_sender_wait:
                np.maximum.at(self.stream, operation.rank, operation.end)
            yield drop_unreported(replace(operation, seq=self._count_pairs(operation)), scene.still)

    # When and how an operation begins.

    def _state(self, ranks: Ints, size: int = 0) -> tuple[Condition, Outages | None]:
        timestamp = float(self.stream[ranks].min())
        return self.conditions.at(timestamp, size, self.spared), self.conditions.outages(timestamp)

    def _scene(self, ranks: Ints, size: int, random: np.random.Generator, absent: Sequence[int] = ()) -> Scene:
        now, still = self._state(ranks, size)
        late = np.abs(random.normal(0.0, self.scenario.noise.enqueue_us * 1e3, len(ranks)))
        launched = self.host[ranks] + _LAUNCH_NS / now.cpu[ranks] + late
        enqueued = resume(still.proxies if still else None, launched, ranks)
        enqueue, start = np.full(self.placement.ranks, NEVER), np.full(self.placement.ranks, NEVER)
        enqueue[ranks] = enqueued
        begun = np.maximum(self.stream[ranks], enqueued) + _KERNEL_NS
        start[ranks] = resume(still.gpus if still else None, begun, ranks)
        enqueue[list(absent)] = start[list(absent)] = NEVER
        self.host[ranks] = np.where(np.isin(ranks, list(absent)), self.host[ranks], enqueue[ranks])
        return Scene(self.scenario.cluster, now, still, enqueue, start, self.scenario.noise, random)

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
        key = (operation.group, operation.index, operation.peer)
        seq = counts[key].copy()
        np.add.at(counts, key, 1)
        return seq


def drop_unreported(operation: Operation, still: Outages | None) -> Operation:
    """Leave out what nobody hears of: a process that never goes on says nothing of what its GPU still does."""
    silent = outage_of(still.proxies if still else None, operation.rank)
    if silent is None:
        return operation
    start, end = (
        np.where((timestamp >= silent.begin) & (silent.end >= NEVER), NEVER, timestamp)
        for timestamp in (operation.start, operation.end)
    )
    return replace(operation, start=start, end=end)


class Simulation:
    """Runs a scenario from its beginning; the same scenario and seed give the same operations, bit for bit."""

    def __init__(self, scenario: Scenario, seed: int, hosts: Ints | None = None) -> None:
        """`hosts`: numbers of those that the job begins on; the first ones, when not given."""
        self.scenario, self.seed = scenario, seed
        self.topology = build_topology(scenario.cluster)
        self.network = Network(self.topology, scenario.cluster.nics_per_host)
        self.step = 0
        self._finished: list[tuple[int, int, Ints, Times, Times]] = []
        self._until_ns = 0.0
        self._pauses = [fault for fault in scenario.timeline if fault.effect == "pause"]
        self._mistakes = [fault for fault in scenario.timeline if fault.effect in ("mismatched", "deadlocked")]
        restarts = [fault for fault in scenario.timeline if fault.effect == "restart"]
        self._restarts = sorted(restarts, key=lambda fault: fault.at_s)
        self._begin(place_ranks(scenario, hosts).hosts, attempt=0, begin_ns=0.0)

    def _begin(self, hosts: Ints, attempt: int, begin_ns: float) -> None:
        self.hosts = hosts
        self.running = Running(self.scenario, place_ranks(self.scenario, hosts), self.network, attempt, begin_ns)
        self.attempt_began_ns = begin_ns
        self._plans: dict[bool, list[Wave]] = {}
        self._steps_of_attempt = 0

    @property
    def attempt(self) -> int:
        return self.running.attempt

    @property
    def now_ns(self) -> int:
        """How far every rank has come: no operation that is still to be reported ends before this."""
        return int(min(self.running.stream.min(), max(self._until_ns, 0.0)))

    def run_until(self, until_ns: float) -> Iterator[Operation]:
        """Yield the operations of all training steps that begin before `until_ns`."""
        self._until_ns = until_ns
        while True:
            if self._restarts and self._restarts[0].at_s * NS_PER_S <= min(self.running.stream.min(), until_ns):
                self._restart(self._restarts.pop(0))
            if self.running.stream.min() >= until_ns:
                return
            yield from self._run_step()

    def take_steps(self) -> list[tuple[int, int, Ints, Times, Times]]:
        """Return attempt, number, hosts of the ranks, begin and end of each step that was finished since."""
        taken, self._finished = self._finished, []
        return taken

    def _restart(self, fault: Fault) -> None:
        hosts = self.hosts
        if fault.part:
            left = int(fault.name.removeprefix("h"))
            spare = [] if fault.spare is None else [int(fault.spare.removeprefix("h"))]
            hosts = np.concatenate([[host] if host != left else spare for host in hosts.tolist()]).astype(np.int64)
        begin_ns = (fault.at_s + (fault.lasting_s or 0.0)) * NS_PER_S
        self._begin(hosts, self.attempt + 1, begin_ns)

    def _run_step(self) -> Iterator[Operation]:
        random = np.random.default_rng([self.seed, self.step])
        begin = self.running.stream.copy()
        self._prepare(random)
        for wave in self._plan(float(begin.min()) / NS_PER_S):
            yield from self.running.run(wave, random)
        if self.running.stream.max() < NEVER / 2:
            finished = (self.attempt, self.step, self.running.placement.host_of, begin, self.running.stream.copy())
            self._finished.append(finished)
        self.step += 1
        self._steps_of_attempt += 1

    def _plan(self, now_s: float) -> list[Wave]:
        second = any(fault.effect == "second mix" and fault.at_s <= now_s for fault in self.scenario.timeline)
        second = second and bool(self.scenario.job.second_step)
        if second not in self._plans:
            job = self.scenario.job
            self._plans[second] = plan_step(job.second_step if second else job.steps, job, self.running.placement)
        return self._plans[second]

    def _prepare(self, random: np.random.Generator) -> None:
        """Bring the host threads to the beginning of a step: in step with their GPUs, and late where they are."""
        running, now_ns = self.running, float(self.running.stream.min())
        running.host = np.maximum(running.host, running.stream)
        there = active_faults(self.scenario.timeline, now_ns / NS_PER_S)
        running.spared = frozenset(fault for fault in there if fault.share < 1 and random.random() >= fault.share)
        running.host += running.conditions.at(now_ns, 0, running.spared).late_ns
        for fault in [fault for fault in self._pauses if fault.at_s * NS_PER_S <= now_ns]:
            self._pauses.remove(fault)
            running.host[self._ranks(fault)] += (fault.lasting_s or 0.0) * NS_PER_S
        for fault in there:
            if fault.effect == "absent" and fault.at_s * NS_PER_S >= self.attempt_began_ns:
                running.host[self._ranks(fault)] = NEVER
        self._err(now_ns)
        running.host = np.minimum(running.host, NEVER)
        running.compute_factor = self._compute_factor(random)

    def _err(self, now_ns: float) -> None:
        """Have ranks make mistakes that are due, each once."""
        for fault in [fault for fault in self._mistakes if fault.at_s * NS_PER_S <= now_ns]:
            self._mistakes.remove(fault)
            for rank in self._ranks(fault).tolist():
                if fault.effect == "mismatched":
                    self.running.wrong.add(rank)
                else:
                    self.running.misordered |= swap_order(rank, self._plan(now_ns / NS_PER_S), self.running.placement)

    def _ranks(self, fault: Fault) -> Ints:
        """Return the ranks of a fault: one, those of a host, or all; none where an attempt has fewer of them."""
        placement = self.running.placement
        if fault.kind == "rank":
            return np.arange(int(fault.name), min(int(fault.name) + 1, placement.ranks))
        if fault.kind == "host":
            return np.flatnonzero(placement.host_of == int(fault.name.removeprefix("h")))
        return np.arange(placement.ranks)

    def _compute_factor(self, random: np.random.Generator) -> Times:
        """Return how much longer each rank computes in this step, by what it was given to do."""
        job, placement = self.scenario.job, self.running.placement
        factor = np.ones(placement.ranks)
        if job.sequences:
            factor *= random.lognormal(0.0, job.sequences, placement.layout[2])[placement.replica_of()]
        if job.experts:
            factor *= random.lognormal(0.0, job.experts, placement.ranks)
        return factor * job.first_steps_slower if self._steps_of_attempt < 2 else factor
