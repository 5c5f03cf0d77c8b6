"""Real TCP flows between the hosts of a fabric, started, moved and measured from here."""

import json
import select
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.clock import NS_PER_S
from lockstep.errors import LockstepError
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths import flow_worker
from tests.testbed.paths.flows import Nic, PlannedFlow
from tests.testbed.services import wait_until

_CONNECT_S = 20.0
_ANSWER_S = 60.0  # a round over the slowest of links takes seconds


@dataclass(frozen=True, slots=True)
class Count:
    """What the flows have carried so far; counted on each host at a moment of its own."""

    acked: Mapping[PlannedFlow, int]
    at_ns: Mapping[PlannedFlow, int]
    sports: Mapping[PlannedFlow, int] = field(default_factory=dict)  # of those that are connected


@dataclass(frozen=True, slots=True)
class Rates:
    """What flows carried between two counts, without headers."""

    mbps: Mapping[PlannedFlow, float]

    @property
    def aggregate_mbps(self) -> float:
        return sum(self.mbps.values())

    @property
    def worst_mbps(self) -> float:
        return min(self.mbps.values())


def rates_between(before: Count, after: Count) -> Rates:
    """Return the rates of the flows that are in both counts."""
    return Rates(
        {
            flow: (after.acked[flow] - before.acked[flow])
            * 8e-6
            / ((after.at_ns[flow] - before.at_ns[flow]) / NS_PER_S)
            for flow in after.acked
            if flow in before.acked
        }
    )


class Traffic:
    """A worker on every host, each of which can send and receive; the end of the block ends them.

    `listening` are the ports of the receivers, `env` what makes the workers' connections planned ones.
    """

    def __init__(
        self, fabric: Fabric, nics: Iterable[Nic], listening: Sequence[int], env: Mapping[str, str], send_buffer: int
    ) -> None:
        self._fabric = fabric
        command = [sys.executable, "-E", "-S", str(Path(flow_worker.__file__))]
        ports = [str(port) for port in listening]
        self._workers = {
            host: fabric.run_in(
                host,
                [*command, str(send_buffer), fabric.address_of(host, nic), *ports],
                env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for host, nic in nics
        }
        self._flows: dict[str, PlannedFlow] = {}
        self._lock = threading.Lock()  # flows may be moved while a round runs
        for host in self._workers:
            self._read(host)

    def __enter__(self) -> "Traffic":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    @property
    def flows(self) -> list[PlannedFlow]:
        return list(self._flows.values())

    def open(self, flows: Iterable[PlannedFlow]) -> None:
        """Start flows, or start them anew from other ports; does not wait until they are connected."""
        orders: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
        for flow in flows:
            self._flows[flow.name] = flow
            orders[flow.src[0]].append((flow.name, self._fabric.address_of(*flow.dst), flow.dport))
        for host, order in orders.items():
            self._send(host, {"open": order})

    def wait_until_open(self) -> Count:
        """Return a count when all flows are connected."""
        counts: list[Count] = []

        def is_open() -> bool:
            counts.append(self.count())
            return len(counts[-1].sports) == len(self._flows)

        wait_until(is_open, "all flows are connected", _CONNECT_S)
        return counts[-1]

    def close(self) -> None:
        """End all flows, in the middle of a round, too."""
        for host in self._workers:
            self._send(host, {"end": True})
        self._flows.clear()

    def count(self) -> Count:
        """Ask all workers at once."""
        senders = {flow.src[0] for flow in self.flows}
        for host in senders:
            self._send(host, {"count": True})
        answers = [json.loads(self._read(host)) for host in senders]
        return Count(
            self._gather(answers, lambda each, name: each["acked"][name]),
            self._gather(answers, lambda each, _: each["at_ns"]),
            {self._flows[name]: port for each in answers for name, port in each["sports"].items()},
        )

    def measure(self, seconds: float) -> Rates:
        """Return the rates over some seconds from now."""
        before = self.count()
        time.sleep(seconds)
        return rates_between(before, self.count())

    def run_round(self, length: int) -> float:
        """Have every flow send so many bytes, wait for all of them, and return how long that took, in seconds."""
        began = time.monotonic()
        senders = {flow.src[0] for flow in self.flows}
        for host in senders:
            self._send(host, {"round": length})
        for host in senders:
            self._read(host)
        return time.monotonic() - began

    def _gather(
        self, answers: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any], str], int]
    ) -> dict[PlannedFlow, int]:
        return {self._flows[name]: value(each, name) for each in answers for name in each["acked"]}

    def _send(self, host: str, command: Mapping[str, object]) -> None:
        stream = self._workers[host].stdin
        assert stream is not None
        with self._lock:
            stream.write(json.dumps(command).encode() + b"\n")
            stream.flush()

    def _read(self, host: str) -> bytes:
        stream = self._workers[host].stdout
        assert stream is not None
        answer = select.poll()
        answer.register(stream, select.POLLIN)
        if not answer.poll(int(_ANSWER_S * 1000)):  # nothing is buffered: one question, one line
            raise LockstepError(f"the worker on {host} has said nothing for {_ANSWER_S:.0f} s")
        line: bytes = stream.readline()
        if not line:
            raise LockstepError(f"the worker on {host} has ended with {self._workers[host].wait()}")
        return line
