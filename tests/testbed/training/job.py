"""Pipeline jobs on loopback whose workers are killed and come back: `python -m tests.testbed.training.job` < PLANS.

Workers are forked after torch is imported, which takes longer than the jobs; so one process runs any number of them,
one after another. They do the steps by the schedules of their plan, are killed where the plan says so, and go on with
the last step that all survivors have settled. A step in whose middle a worker dies starts again: its partial
gradients are thrown away.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lockstep.errors import LockstepError
from lockstep.pipeline.schedule import Worker
from lockstep.verdict import Frozen
from tests.testbed.training.forking import fork_child
from tests.testbed.training.plan import Command, Kill, LossLine, Reply, StepLine, TrainingPlan

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


_LINES = "lines.jsonl"
_PLANS = TypeAdapter(list[TrainingPlan])


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a job told: every settled step of every worker, and every worker that it lost.

    A worker that is killed just after a step may take what it had to tell of that step with it.
    """

    steps: Sequence[StepLine]
    losses: Sequence[LossLine]


def run_training(plans: Sequence[TrainingPlan], limit_s: float = 300.0) -> list[TrainingRun]:
    """Run the jobs in a process of their own; LockstepError with its complaints if one fails."""
    command = [sys.executable, "-m", "tests.testbed.training.job"]
    given = _PLANS.dump_json(list(plans)).decode()
    ended = subprocess.run(command, input=given, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    if ended.returncode:
        raise LockstepError(f"a training job failed with {ended.returncode}: {ended.stderr[-3000:]}")
    return [read_run(plan.folder) for plan in plans]


def read_run(folder: Path) -> TrainingRun:
    """Return what a job has told so far; what was told of steps that the survivors of a loss did again is void."""
    steps: list[StepLine] = []
    losses: list[LossLine] = []
    for line in (folder / _LINES).read_text().splitlines():
        if line.startswith('{"lost"'):
            losses.append(LossLine.model_validate_json(line))
            steps = [earlier for earlier in steps if earlier.step < losses[-1].step]
        else:
            steps.append(StepLine.model_validate_json(line))
    return TrainingRun(steps, losses)


def run_here(plan: TrainingPlan) -> None:
    """Be the coordinator of a job."""
    import torch._dynamo  # torch's optimizers import it when first built: better once, before all forks  # noqa: F401

    from tests.testbed.training.worker import serve

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    plan.folder.mkdir(parents=True, exist_ok=True)
    file = os.open(plan.folder / _LINES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def report(line: Frozen) -> None:
        os.write(file, f"{line.model_dump_json()}\n".encode())  # whole: workers share the file

    try:
        Coordinator(plan, lambda worker, control: serve(plan, worker, control, report), report).run()
    finally:
        os.close(file)


def main(arguments: Sequence[str]) -> None:
    """Run the plans on standard input."""
    if arguments:
        raise SystemExit("usage: python -m tests.testbed.training.job < PLANS")
    try:
        for plan in _PLANS.validate_json(sys.stdin.read()):
            run_here(plan)
    except LockstepError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
