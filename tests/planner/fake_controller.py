"""A fake job controller whose cluster is a JSON file, so that it outlives whoever asks it, as a real one does."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.errors import ControllerDown
from planner.controllers.protocol import EVERY_ACT, JobView, Node, Report, Restart


@dataclass
class World:
    """What the fake keeps; `acts` counts every change it really made."""

    nodes: dict[str, str | None] = field(default_factory=dict)  # node to the mark under which it is isolated
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)  # Any: fields of a JobView
    acts: list[str] = field(default_factory=list)
    is_down: bool = False
    refuses_restarts: bool = False


class FakeController:
    name = "fake"
    restarts_whole_job = False
    acts = EVERY_ACT

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def world(self) -> World:
        return World(**json.loads(self._file.read_text()))

    def save(self, world: World) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(world)))
        fresh.rename(self._file)

    def change(self, **fields: Any) -> None:  # Any: of the world
        self.save(replace(self.world, **fields))

    def mark(self, **marks: str | None) -> None:
        """Let somebody else isolate nodes or give them back."""
        self.change(nodes=self.world.nodes | marks)

    def run_job(self, name: str, nodes: Sequence[str] | None = None) -> None:
        """Let another job run, where train runs unless nodes are given."""
        jobs = self.world.jobs
        on = jobs["train"]["nodes"] if nodes is None else list(nodes)
        self.change(jobs=jobs | {name: asdict(JobView(name, "running", tuple(on)))})

    def nodes(self) -> Sequence[Node]:
        return [Node(name, mark is None, mark) for name, mark in self._answering().nodes.items()]

    def job(self, job: str) -> JobView | None:
        found = self._answering().jobs.get(job)
        return JobView(**(found | {"nodes": tuple(found["nodes"])})) if found else None

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        world = self._answering()
        if node not in world.nodes:
            return Report("refused", f"there is no node {node}")
        if world.nodes[node]:
            return Report("already" if world.nodes[node] == mark else "refused", f"under {world.nodes[node]}")
        world.nodes[node] = mark
        return self._did(world, f"isolate {node}")

    def release(self, node: str, mark: str) -> Report:
        world = self._answering()
        if world.nodes.get(node) is None:
            return Report("already", f"{node} is usable")
        if world.nodes[node] != mark:
            return Report("refused", f"{node} is isolated by {world.nodes[node]}")
        world.nodes[node] = None
        return self._did(world, f"release {node}")

    def restart(self, order: Restart) -> Report:
        world = self._answering()
        if world.refuses_restarts:
            return Report("refused", "the fake refuses to restart")
        started = next((job["id"] for job in world.jobs.values() if job["mark"] == order.mark), None)
        if started:
            return Report("already", f"{started} was started before", started)
        usable = [node for node, mark in world.nodes.items() if mark is None and node not in order.exclude]
        count = order.nnodes or len(world.jobs[order.job]["nodes"])
        if order.job in world.jobs:
            world.jobs[order.job]["state"] = "ended"
        fresh = f"{order.job}+{len(world.jobs)}"
        is_enough = len(usable) >= count
        view = JobView(fresh, "running" if is_enough else "waiting", tuple(usable[:count]), 0, order.mark)
        world.jobs[fresh] = asdict(view)
        return replace(self._did(world, f"restart {order.job} on {','.join(usable[:count])}"), job=fresh)

    def reattempt(self, job: str, mark: str) -> Report:
        return self._did(self._answering(), f"reattempt {job}")

    def _answering(self) -> World:
        world = self.world
        if world.is_down:
            raise ControllerDown("the fake controller does not answer")
        return world

    def _did(self, world: World, what: str) -> Report:
        world.acts.append(what)
        self.save(world)
        return Report("done", what)


def make_world(file: Path, nodes: Sequence[str], job: str = "train", on: int = 8) -> FakeController:
    fake = FakeController(file)
    running = asdict(JobView(job, "running", tuple(nodes[:on])))
    fake.save(World(dict.fromkeys(nodes), {job: running}))
    return fake
