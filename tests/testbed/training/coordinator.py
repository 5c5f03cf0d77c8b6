"""The coordinator of a pipeline job: starts, commands and kills its workers, and says with which step they go on."""

import os
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.errors import LockstepError
from planner.pipeline.schedule import Worker
from tests.testbed.training.forking import fork_child
from tests.testbed.training.plan import Command, Kill, LossLine, Reply, TrainingPlan

_PATIENCE = 5  # timeouts of a worker without any answer: it may have tried to meet three times
Live = Callable[[Worker, socket.socket], None]


@dataclass(frozen=True, slots=True)
class _Member:
    """A live worker, and the line to it."""

    pid: int
    control: socket.socket

    def command(self, command: Command) -> None:
        self.control.sendall(f"{command.model_dump_json()}\n".encode())

    def receive(self) -> Reply:
        """Return its next reply: one short line, which arrives whole."""
        line = self.control.recv(1 << 16)
        if not line:
            raise LockstepError(f"worker process {self.pid} has ended by itself")
        return Reply.model_validate_json(line)

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        self.control.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Coordinator:
    """The live workers of a job; each does `live` with its line to the coordinator."""

    def __init__(self, plan: TrainingPlan, live: Live, report: Callable[[LossLine], None]) -> None:
        self._plan = plan
        self._live = live
        self._report = report
        self._members: dict[Worker, _Member] = {}
        self._failed: set[Worker] = set()
        self._kills = sorted(plan.kills, key=lambda kill: (kill.step, kill.after_ops or 0))
        self._rejoins = list(plan.rejoins)
        self._untold: list[tuple[Worker, int]] = []  # losses, with exit codes
        self._generation = 0

    def run(self) -> None:
        """Do all steps and let every live worker save its state; whatever happens, none is left."""
        try:
            self._run()
        finally:
            for member in self._members.values():
                member.kill()

    def _run(self) -> None:
        shape = self._plan.shape
        for worker in (Worker(d, s) for d in range(shape.pipelines) for s in range(shape.stages)):
            self._start(worker)
        step = 0
        while step < self._plan.steps:
            self._kill_before(step)
            step = self._run_steps(step, self._rejoin_before(step))
        if self._kills or self._rejoins:
            raise LockstepError(f"the job ended before {[*self._kills, *self._rejoins]}")
        self._let_go()

    def _start(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        self._members[worker] = _Member(fork_child(lambda: self._live(worker, theirs)), ours)
        theirs.close()

    def _kill_before(self, step: int) -> None:
        for kill in [kill for kill in self._kills if kill.step == step and kill.after_ops is None]:
            self._lose(kill)

    def _lose(self, kill: Kill) -> None:
        self._kills.remove(kill)
        self._failed.add(kill.worker)
        self._untold.append((kill.worker, self._members.pop(kill.worker).kill()))

    def _rejoin_before(self, step: int) -> list[Worker]:
        due = [rejoin for rejoin in self._rejoins if rejoin.step == step]
        for rejoin in due:
            self._rejoins.remove(rejoin)
            self._failed.remove(rejoin.worker)
            self._start(rejoin.worker)
        return [rejoin.worker for rejoin in due]

    def _run_steps(self, first: int, joined: list[Worker]) -> int:
        """Let the live workers go on to the next change of members; return the step that all of them have reached."""
        self._report_losses(first)
        end = min([step for step in self._boundaries() if step > first] + [self._plan.steps])
        victim = next((kill for kill in self._kills if kill.after_ops is not None and kill.step < end), None)
        failed = tuple(sorted(self._failed))
        command = Command(generation=self._generation, failed=failed, joined=tuple(joined), first=first, end=end)
        self._generation += 1
        for worker, member in self._members.items():
            spot = (victim.step, victim.after_ops) if victim and victim.worker == worker else None
            member.command(command.model_copy(update={"stand_at": spot}))
        return self._receive_all(victim)

    def _boundaries(self) -> list[int]:
        return [rejoin.step for rejoin in self._rejoins] + [
            kill.step for kill in self._kills if kill.after_ops is None
        ]

    def _report_losses(self, step: int) -> None:
        for worker, exit_code in self._untold:
            self._report(LossLine(lost=worker, exit_code=exit_code, step=step))
        self._untold.clear()

    def _receive_all(self, victim: Kill | None) -> int:
        """Wait for all replies, kill the victim at its spot, and return the steps that all survivors have settled."""
        replies: dict[Worker, Reply] = {}
        with selectors.DefaultSelector() as selector:
            for worker, member in self._members.items():
                selector.register(member.control, selectors.EVENT_READ, worker)
            while len(replies) < len(self._members):
                ready = selector.select(_PATIENCE * self._plan.timeout_s)
                if not ready:
                    raise LockstepError(f"of {sorted(self._members)} only {sorted(replies)} have answered")
                for key, _ in ready:
                    reply = self._members[key.data].receive()
                    selector.unregister(key.fileobj)
                    if reply.state == "standing" and victim:
                        self._lose(victim)
                    else:
                        replies[key.data] = reply
        broken = [f"{worker}: {reply.reason}" for worker, reply in replies.items() if reply.state == "broken"]
        if broken and not self._untold:
            raise LockstepError(f"nobody was killed, and workers broke off: {'; '.join(broken)}")
        return min(reply.settled for reply in replies.values())

    def _let_go(self) -> None:
        """Ask every worker to save its state, and wait for that."""
        for member in self._members.values():
            member.command(Command(generation=self._generation))
        codes = {worker: self._members[worker].wait() for worker in sorted(self._members)}
        self._members.clear()
        if any(codes.values()):
            raise LockstepError(f"workers failed at the end: {codes}")
