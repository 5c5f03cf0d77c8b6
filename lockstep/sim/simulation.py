"""A story as it runs: training steps in order, attempt after attempt, each turned into operations of its ranks."""

from collections.abc import Iterator

import numpy as np

from lockstep.clock import NS_PER_S
from lockstep.sim.network import Network
from lockstep.sim.operations import Operation
from lockstep.sim.placement import Ints, place
from lockstep.sim.running import Running
from lockstep.sim.schedule import Wave, plan_step, swap_order
from lockstep.sim.story import Story, build_topology
from lockstep.sim.timeline import Turn, turns_now
from lockstep.sim.wires import NEVER, Times

_MISTAKES = ("mismatched", "deadlocked")


class Simulation:
    """Runs a story from its beginning; the same story and seed give the same operations, bit for bit."""

    def __init__(self, story: Story, seed: int) -> None:
        self.story, self.seed = story, seed
        self.topology = build_topology(story.cluster)
        self.network = Network(self.topology, story.cluster.nics_per_host)
        self.step = 0
        self._finished: list[tuple[int, int, Ints, Times, Times]] = []
        self._until_ns = 0.0
        self._pauses = [turn for turn in story.timeline if turn.effect == "pause"]
        self._mistakes = [turn for turn in story.timeline if turn.effect in _MISTAKES]
        self._restarts = sorted((turn for turn in story.timeline if turn.effect == "restart"), key=lambda t: t.at_s)
        self._begin(place(story).hosts, attempt=0, begin_ns=0.0)

    def _begin(self, hosts: Ints, attempt: int, begin_ns: float) -> None:
        self.hosts = hosts
        self.running = Running(self.story, place(self.story, hosts), self.network, attempt, begin_ns)
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

    def _restart(self, turn: Turn) -> None:
        hosts = self.hosts
        if turn.part:
            left = int(turn.name.removeprefix("h"))
            spare = [] if turn.spare is None else [int(turn.spare.removeprefix("h"))]
            hosts = np.concatenate([[host] if host != left else spare for host in hosts.tolist()]).astype(np.int64)
        begin_ns = (turn.at_s + (turn.lasting_s or 0.0)) * NS_PER_S
        self._begin(hosts, self.attempt + 1, begin_ns)

    def _run_step(self) -> Iterator[Operation]:
        random = np.random.default_rng([self.seed, self.step])
        begin = self.running.stream.copy()
        self._prepare(random)
        for wave in self._plan(float(begin.min()) / NS_PER_S):
            yield from self.running.run(wave, random)
        if self.running.stream.max() < NEVER / 2:
            told = (self.attempt, self.step, self.running.placement.host_of, begin, self.running.stream.copy())
            self._finished.append(told)
        self.step += 1
        self._steps_of_attempt += 1

    def _plan(self, now_s: float) -> list[Wave]:
        second = any(turn.effect == "second mix" and turn.at_s <= now_s for turn in self.story.timeline)
        second = second and bool(self.story.job.second_step)
        if second not in self._plans:
            job = self.story.job
            self._plans[second] = plan_step(job.second_step if second else job.steps, job, self.running.placement)
        return self._plans[second]

    def _prepare(self, random: np.random.Generator) -> None:
        """Bring the host threads to the beginning of a step: in step with their GPUs, and late where they are."""
        running, now_ns = self.running, float(self.running.stream.min())
        running.host = np.maximum(running.host, running.stream)
        there = turns_now(self.story.timeline, now_ns / NS_PER_S)
        running.lucky = frozenset(turn for turn in there if turn.share < 1 and random.random() >= turn.share)
        running.host += running.conditions.at(now_ns, 0, running.lucky).late_ns
        self._pause(now_ns)
        for turn in there:
            if turn.effect == "absent" and turn.at_s * NS_PER_S >= self.attempt_began_ns:
                running.host[self._ranks(turn)] = NEVER
        self._err(now_ns)
        running.host = np.minimum(running.host, NEVER)
        running.compute_factor = self._compute_factor(random)

    def _pause(self, now_ns: float) -> None:
        for turn in [turn for turn in self._pauses if turn.at_s * NS_PER_S <= now_ns]:
            self._pauses.remove(turn)
            self.running.host[self._ranks(turn)] += (turn.lasting_s or 0.0) * NS_PER_S

    def _err(self, now_ns: float) -> None:
        """Have ranks make mistakes that are due, each once."""
        for turn in [turn for turn in self._mistakes if turn.at_s * NS_PER_S <= now_ns]:
            self._mistakes.remove(turn)
            for rank in self._ranks(turn).tolist():
                if turn.effect == "mismatched":
                    self.running.wrong.add(rank)
                else:
                    self.running.astray |= swap_order(rank, self._plan(now_ns / NS_PER_S), self.running.placement)

    def _ranks(self, turn: Turn) -> Ints:
        """Return the ranks of a turn: one, those of a host, or all; none where an attempt has fewer of them."""
        placement = self.running.placement
        if turn.kind == "rank":
            return np.arange(int(turn.name), min(int(turn.name) + 1, placement.ranks))
        if turn.kind == "host":
            return np.flatnonzero(placement.host_of == int(turn.name.removeprefix("h")))
        return np.arange(placement.ranks)

    def _compute_factor(self, random: np.random.Generator) -> Times:
        """Return how much longer each rank computes in this step, by what it was given to do."""
        job, placement = self.story.job, self.running.placement
        factor = np.ones(placement.ranks)
        if job.sequences:
            factor *= random.lognormal(0.0, job.sequences, placement.layout[2])[placement.replica_of()]
        if job.experts:
            factor *= random.lognormal(0.0, job.experts, placement.ranks)
        return factor * job.first_steps_slower if self._steps_of_attempt < 2 else factor
