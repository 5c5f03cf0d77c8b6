"""The way back of a node that was taken out of service: tested, then returned, or kept for repair."""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.executions import list_isolated, save_isolated
from lockstep.control.leases import Lease
from lockstep.errors import BadInput, ControllerDown
from lockstep.execution import Isolated
from planner.controllers.protocol import Controller

_SAID_LETTERS = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """What a test has found."""

    is_healthy: bool
    said: str


class Tester(Protocol):
    """Tests a node that carries no work; a test may take many rounds."""

    def look(self, node: str, now_ns: int) -> Finding | None:
        """Begin the test of a node, or look how far it has come; None: it is not over."""
        ...


@dataclass(frozen=True, slots=True)
class ReturnOptions:
    """When a node is tested."""

    rest_s: float = 60.0  # after its isolation: the job that ran there ends first
    tests: int = 3  # failed ones, after which a node is left for repair
    again_s: float = 600.0  # between tests that failed


class CommandTester:
    """Runs a command per node, such as `ssh {node} dcgmi diag -r 2`: exit code 0 means healthy."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        if not any("{node}" in word for word in command):
            raise BadInput(f"the test command `{shlex.join(command)}` does not say {{node}}")
        self._command, self._timeout_s = tuple(command), timeout_s
        self._running: dict[str, _Running] = {}

    def look(self, node: str, now_ns: int) -> Finding | None:
        """Start the command, or see whether it has ended."""
        run = self._running.get(node)
        if run is not None and run.process.poll() is not None and now_ns - run.began_ns > self._timeout_s * NS_PER_S:
            _finish(self._running.pop(node), self._timeout_s)  # of an earlier isolation: nobody came for its result
            run = None
        if run is None:
            self._running[node] = _start([word.replace("{node}", node) for word in self._command], now_ns)
            return None
        is_late = now_ns - run.began_ns > self._timeout_s * NS_PER_S
        if run.process.poll() is None and not is_late:
            return None
        del self._running[node]
        return _finish(run, self._timeout_s)


class Returner:
    """Tests what is isolated, and gives back what is healthy."""

    def __init__(
        self, control: ControlDatabase, controller: Controller, tester: Tester, options: ReturnOptions | None = None
    ) -> None:
        self._control, self._controller, self._tester = control, controller, tester
        self._options = options or ReturnOptions()

    def run_once(self, lease: Lease, now_ns: int) -> None:
        """Take each isolated node one step further on its way back."""
        for isolated in list_isolated(self._control, since_ns=now_ns):
            if isolated.state == "testing" or (isolated.state == "isolated" and self._is_due(isolated, now_ns)):
                self._test(isolated, lease, now_ns)

    def _is_due(self, isolated: Isolated, now_ns: int) -> bool:
        wait_s = self._options.again_s if isolated.tests else self._options.rest_s
        return now_ns - isolated.changed_ns >= wait_s * NS_PER_S

    def _test(self, isolated: Isolated, lease: Lease, now_ns: int) -> None:
        if isolated.state != "testing":
            isolated = isolated.model_copy(update={"state": "testing", "changed_ns": now_ns})
            save_isolated(self._control, isolated, lease, why="its test has begun")
        finding = self._tester.look(isolated.node, now_ns)
        if finding is None:
            return
        after = self._release(isolated, finding) if finding.is_healthy else self._keep(isolated, finding)
        save_isolated(self._control, after.model_copy(update={"changed_ns": now_ns}), lease, why=after.said)

    def _release(self, isolated: Isolated, finding: Finding) -> Isolated:
        """Return the node to service; where the controller does not do it, it stays isolated and is asked again."""
        try:
            report = self._controller.release(isolated.node, isolated.decision)
        except ControllerDown as down:
            return isolated.model_copy(update={"said": f"tested healthy, but not released: {down}"})
        state = "returned" if report.is_good else "repair" if report.outcome == "refused" else "isolated"
        return isolated.model_copy(update={"state": state, "said": f"{finding.said}; {report.what}"})

    def _keep(self, isolated: Isolated, finding: Finding) -> Isolated:
        tests = isolated.tests + 1
        state = "repair" if tests >= self._options.tests else "isolated"
        return isolated.model_copy(update={"state": state, "tests": tests, "said": finding.said})


@dataclass
class _Running:
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    began_ns: int


def _start(command: Sequence[str], now_ns: int) -> _Running:
    output = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the command
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        output.close()
        raise BadInput(f"the test command cannot be started: {error}") from error
    return _Running(process, output, now_ns)


def _finish(run: _Running, timeout_s: float) -> Finding:
    """Return what a command found that has ended or has run for too long; nothing of it is left behind."""
    is_late = run.process.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)  # also what it has started
    code = run.process.wait()
    with run.output as output:
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    said = lines[-1][:_SAID_LETTERS] if lines else "it said nothing"
    if is_late:
        return Finding(False, f"the test did not end within {timeout_s:.0f} s; {said}")
    return Finding(code == 0, f"the test {'passed' if code == 0 else f'failed with {code}'}: {said}")
