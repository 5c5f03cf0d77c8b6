"""torchrun as a controller: a node leaves when its elastic agent is stopped, and comes back when it is started again.

torchrun has no head that could be asked: each node runs an agent, and the agents meet. So a node cannot be barred
from new work while its work goes on; to isolate it is to stop its agent, after which the others meet without it.
What torchrun does not remember is kept in notes; an agent carries the mark it was started under in its environment.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadInput, ControllerDown, ControllerRefused
from planner.controllers.protocol import (
    EVERY_ACT,
    JobView,
    Node,
    Report,
    Restart,
    check_mark,
    check_name,
    check_order,
    find_variables,
    report_half_done,
)
from planner.controllers.running import Deadline, Notes
from planner.controllers.torchrun_agents import Agents, Meeting, Reach

_LEFT_S = 1.0  # of a call's time, when an agent that does not end is given up
_LAST = "last-restart"  # the note on the order that started the job last


@dataclass(frozen=True, slots=True)
class TorchrunOptions:
    """One torchrun job and the nodes it may run on."""

    job: str  # its --rdzv-id
    nodes: tuple[str, ...]
    reach: Reach
    state: Path  # notes are kept here; it must outlive the planner
    min_nodes: int = 1  # the MIN of --nnodes MIN:MAX
    rendezvous_node: str | None = None  # hosts the c10d store at first; None: a service of its own does
    timeout_s: float = 60.0  # for each call; an agent gives its workers 30 s to end
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_name(self.job, "job")
        for node in self.nodes:
            check_name(node, "node")
        if self.timeout_s <= 0 or not 1 <= self.min_nodes <= len(self.nodes):
            raise BadInput(f"timeout_s={self.timeout_s} or min_nodes={self.min_nodes} of {len(self.nodes)} is wrong")


class TorchrunController:
    """Stops and starts the agents of one torchrun job."""

    name = "torchrun"
    restarts_whole_job = False
    acts = EVERY_ACT

    def __init__(self, options: TorchrunOptions) -> None:
        self._options = options
        self._notes = Notes(options.state)
        self._meeting = Meeting(options.rendezvous_node, options.reach.launch, self._notes)

    def nodes(self) -> Sequence[Node]:
        """Return the job's nodes; usable are those from which we have not taken the agent."""
        return [self._node(name) for name in self._options.nodes]

    def job(self, job: str) -> JobView | None:
        """Return the job: it runs while an agent does. How it ended, torchrun tells nobody but its caller."""
        check_name(job, "job")
        if job != self._options.job:
            return None
        agents = self._agents()
        try:
            found = agents.find_all(self._options.nodes, self._barred())
            workers = agents.find_workers(found[0].node) if found else []
        except ControllerRefused as failure:
            raise ControllerDown(f"the agents of job {job} cannot be seen {failure}") from None
        nodes, restarts = tuple(agent.node for agent in found), max((each.restarts for each in workers), default=0)
        return JobView(job, "running" if found else "ended", nodes, restarts, found[0].mark if found else None)

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Stop a node's agent, and do not start it again; refused where the rest could not go on."""
        check_mark(mark)
        return self._report(node, lambda agents: self._isolate(agents, node, mark, reason))

    def release(self, node: str, mark: str) -> Report:
        """Start a node's agent again if the job runs; it joins, and that uses up none of the job's restarts."""
        check_mark(mark)
        return self._report(node, lambda agents: self._release(agents, node, mark))

    def restart(self, order: Restart) -> Report:
        """Stop all agents and start them again without the order's nodes and with its variables."""
        check_order(order)
        if order.job != self._options.job:
            return Report("refused", f"this controller knows job {self._options.job} only, not {order.job}")
        return report_half_done(
            lambda: self._report(None, lambda agents: self._restart(agents, order)),
            lambda: "done" not in (self._notes.read(f"restart-{order.mark}") or {"done": ""}),
        )

    def reattempt(self, job: str, mark: str) -> Report:
        """Kill one worker, whereupon the agents start all workers again in place, if a restart is left."""
        check_mark(mark)
        if job != self._options.job:
            return Report("refused", f"this controller knows job {self._options.job} only, not {job}")
        return self._report(None, lambda agents: self._reattempt(agents, mark))

    def _report(self, node: str | None, act: Callable[[Agents], Report]) -> Report:
        if node is not None and check_name(node, "node") not in self._options.nodes:
            return Report("refused", f"job {self._options.job} has no node {node}")
        try:
            return act(self._agents())
        except ControllerRefused as failure:
            return Report("failed", str(failure))

    def _agents(self) -> Agents:
        return Agents(self._options.job, self._options.reach, Deadline(self._options.timeout_s))

    def _barred(self) -> set[str]:
        return {each.name for each in self.nodes() if not each.is_usable}

    def _node(self, name: str) -> Node:
        note = self._notes.read(f"node-{name}")
        return Node(name, False, note["mark"], note["reason"]) if note else Node(name, True)

    def _isolate(self, agents: Agents, node: str, mark: str, reason: str) -> Report:
        now = self._node(node)
        if now.mark not in (None, mark):
            return Report("refused", f"{node} was isolated under {now.mark}: {now.reason}")
        hosts = node == self._meeting.node
        if now.mark == mark and (hosts or not agents.find_all([node], [node])):
            return Report("already", f"{node} is isolated under {mark}: {now.reason}")
        why_not = self._why_needed(node) if now.mark is None else None
        if why_not:
            return Report("refused", why_not)
        if self._options.dry_run:
            return Report(
                "would", f"would leave {node} out of the next start" if hosts else f"would stop the agent of {node}"
            )
        self._notes.write(f"node-{node}", {"mark": mark, "reason": reason})
        if hosts:  # all agents would end with it: it stays until the job is started again with another
            return Report("done", f"{node}, where the agents meet, takes no part in the next start: {reason}")
        try:
            workers = agents.stop(node)
        except ControllerRefused as away:  # a dead host: the others meet without it, and nobody starts it again
            return Report("done", f"{node} does not answer and is not started again: {away}")
        if not agents.deadline.wait_until(lambda: agents.find(node) is None, _LEFT_S):
            return Report("failed", f"the agent of {node} was asked to end and still runs")
        agents.end_left(workers)
        return Report("done", f"the agent of {node} is stopped: {reason}")

    def _why_needed(self, node: str) -> str | None:
        job, left = self._options.job, sum(each.is_usable for each in self.nodes()) - 1
        if why_stuck := self._meeting.why_stuck(node, job):
            return why_stuck
        if left < self._options.min_nodes:
            return f"job {job} would have {left} nodes left and needs {self._options.min_nodes}"
        return None

    def _release(self, agents: Agents, node: str, mark: str) -> Report:
        now = self._node(node)
        if now.is_usable:
            return Report("already", f"{node} is in service")
        if now.mark != mark:
            return Report("refused", f"{node} was not isolated under {mark} but under {now.mark}: {now.reason}")
        running = [agent.node for agent in agents.find_all(self._options.nodes, self._barred())]
        last = self._notes.read(_LAST) or {"mark": mark, "variables": "{}"}
        # An attempt that was started for so many nodes grows by a decision of its own, not because a test has passed.
        is_full = node not in running and len(running) >= int(last.get("nnodes") or len(self._options.nodes))
        does_run = bool(running) and not is_full
        if self._options.dry_run:
            return Report("would", f"would start the agent of {node} again" if does_run else f"would release {node}")
        if does_run and agents.find(node) is None:
            agents.launch(node, last["mark"], json.loads(last["variables"]), self._meeting.node)
        self._notes.remove(f"node-{node}")
        if does_run:
            return Report("done", f"the agent of {node} runs again")
        idle = f"the job runs on the {len(running)} nodes that it was started for" if running else "no job runs"
        return Report("done", f"{node} is in service; {idle}")

    def _restart(self, agents: Agents, order: Restart) -> Report:
        job, note = order.job, self._notes.read(f"restart-{order.mark}") or {}
        if "done" in note:
            return Report("already", f"job {job} was started again under {order.mark}", job)
        wanted = note["nodes"].split() if note else self._choose(agents, order)
        least = max(order.nnodes or 0, self._options.min_nodes)
        if len(wanted) < least:
            return Report("refused", f"job {job} needs {least} nodes and only {len(wanted)} are in service")
        meeting = self._meeting.node
        if meeting and meeting not in wanted and (why_stuck := self._meeting.why_stuck(meeting, job)):
            return Report("refused", why_stuck)
        if self._options.dry_run:
            return Report("would", f"would stop all agents of job {job} and start them on {', '.join(wanted)}")
        self._notes.write(f"restart-{order.mark}", {"nodes": " ".join(wanted)})
        if not self._stop_old(agents, order):
            return Report("failed", f"agents of job {job} were asked to end and still run")
        self._start_new(agents, order, wanted)
        self._notes.write(f"restart-{order.mark}", {"nodes": " ".join(wanted), "done": "yes"})
        return Report("done", f"job {job} is started again on {', '.join(wanted)}", job)

    def _choose(self, agents: Agents, order: Restart) -> list[str]:
        """Return the nodes of the next attempt: those where it runs first, and as many as are asked for."""
        allowed = [each.name for each in self.nodes() if each.is_usable and each.name not in order.exclude]
        running = [agent.node for agent in agents.find_all(allowed)]
        spare = [name for name in allowed if name not in running]
        return [*running, *spare][: order.nnodes or len(allowed)]

    def _stop_old(self, agents: Agents, order: Restart) -> bool:
        """Stop all agents that were not started under this mark, and return whether they are gone."""
        barred = {*order.exclude, *self._barred()}

        def find_old() -> list[str]:
            return [each.node for each in agents.find_all(self._options.nodes, barred) if each.mark != order.mark]

        stopped = agents.each(find_old(), agents.stop)
        if not agents.deadline.wait_until(lambda: not find_old(), _LEFT_S):
            return False
        agents.each(stopped, agents.end_left)
        return True

    def _start_new(self, agents: Agents, order: Restart, wanted: Sequence[str]) -> None:
        variables = find_variables(order)
        counted = {"nnodes": str(order.nnodes)} if order.nnodes else {}
        self._notes.write(_LAST, {"mark": order.mark, "variables": json.dumps(variables)} | counted)
        running = {agent.node for agent in agents.find_all(wanted)}
        missing = [name for name in wanted if name not in running]
        meeting = self._meeting.choose(wanted)
        self._meeting.move(meeting)
        agents.each(missing, lambda name: agents.launch(name, order.mark, variables, meeting))

    def _reattempt(self, agents: Agents, mark: str) -> Report:
        job, note = self._options.job, self._notes.read(f"reattempt-{mark}")
        found = agents.find_all(self._options.nodes)
        workers = agents.find_workers(found[0].node) if found else []
        if note and (not workers or workers[0].restarts > int(note["restarts"])):
            return Report("already", f"a worker of job {job} was killed under {mark}")
        if not workers:
            return Report("refused", f"no worker of job {job} runs")
        worker = workers[0]
        if worker.restarts >= worker.most_restarts:
            return Report("refused", f"job {job} has used up its {worker.most_restarts} restarts")
        what = f"process {worker.pid} on {worker.node}, so that job {job} starts its workers again in place"
        if self._options.dry_run:
            return Report("would", f"would kill {what}")
        self._notes.write(f"reattempt-{mark}", {"restarts": str(worker.restarts)})
        agents.kill_worker(worker)
        return Report("done", f"killed {what}: restart {worker.restarts + 1} of {worker.most_restarts}")
