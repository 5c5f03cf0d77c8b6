"""One run of a fleet: senders prepared and started together, the head node watched until the last receipt."""

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import Note
from benchmarks.fleet_head import Head
from benchmarks.fleet_sender import Order, Sent, read_outcome
from benchmarks.fleet_watch import Moment, Watch
from lockstep.clock import NS_PER_S
from lockstep.errors import LockstepError

_SENDERS = 2
_LEAD_S = 0.5  # from the word to the first batch
_STOP_S = 10.0
_NOTE_S = 5.0


@dataclass(frozen=True)
class RunPlan:
    """Which agents, how long, and from when on it counts."""

    hosts: range
    first_second: int  # that the rows of the first batch carry; runs in one store must not overlap
    seconds: int
    warm_up_s: int = 0
    grace_s: float = 15.0  # for receipts that come after the last batch was due


@dataclass(frozen=True)
class RunOutcome:
    """What was sent, and what the head node looked like meanwhile."""

    plan: RunPlan
    start_ns: int
    sent: tuple[Sent, ...]
    moments: tuple[Moment, ...]
    sighted: dict[tuple[int, int], int]  # host and second of its rows -> when a query first found them


def run_fleet(
    head: Head,
    tokens: dict[int, str],
    plan: RunPlan,
    directory: Path,
    note: Note,
    during: Callable[[], object] = lambda: None,
) -> RunOutcome:
    """Play the plan and return what happened; `during` runs beside it, from the first batch on."""
    with ExitStack() as stack:
        senders = [stack.enter_context(_Sender(order)) for order in _orders(head, tokens, plan, directory)]
        _await_ready(senders, len(plan.hosts), note)
        start_ns = time.monotonic_ns() + int(_LEAD_S * NS_PER_S)
        watch = stack.enter_context(Watch(head, [sender.pid for sender in senders], plan.hosts, plan.first_second))
        for sender in senders:
            sender.start(start_ns)
        during()
        sent = [one for sender in senders for one in sender.finish(plan)]
        watch.wait_for_markers(plan.first_second + plan.seconds)
    return RunOutcome(plan, start_ns, tuple(sent), tuple(watch.moments), watch.sighted)


class _Sender:
    """A sender process; what it says is kept as it comes, so that it never waits for us."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet_sender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            text=True,
        )
        self.pid = self._process.pid
        self.encoded = 0
        self.is_ready = threading.Event()
        self._tell(asdict(order))
        self._listener = threading.Thread(target=self._listen, name=f"sender-{self.pid}")
        self._listener.start()

    def start(self, start_ns: int) -> None:
        self._tell({"start_ns": start_ns})

    def finish(self, plan: RunPlan) -> list[Sent]:
        """Return what became of its batches, once it has ended."""
        self._process.wait(plan.seconds + plan.grace_s + 60)
        if self._process.returncode != 0:
            raise LockstepError(f"a sender of the fleet ended with {self._process.returncode}")
        return read_outcome(Path(self._order.out))

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.is_alive():
            self._process.kill()
        self._process.wait(_STOP_S)
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _tell(self, facts: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(facts) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.encoded = said.get("encoded", self.encoded)
            if "ready" in said:
                self.is_ready.set()


def _orders(head: Head, tokens: dict[int, str], plan: RunPlan, directory: Path) -> Iterator[Order]:
    for number in range(min(_SENDERS, len(plan.hosts))):
        yield Order(
            port=head.port,
            boot=uuid.uuid4().hex,
            tokens={host: tokens[host] for host in plan.hosts[number::_SENDERS]},
            first_second=plan.first_second,
            seconds=plan.seconds,
            grace_s=plan.grace_s,
            out=str(directory / f"sent-{uuid.uuid4().hex}.npy"),
        )


def _await_ready(senders: list[_Sender], agents: int, note: Note) -> None:
    """Wait for the encoding, which is the longest silence of a run, and say how far it is."""
    waited_s = 0.0
    for sender in senders:
        while not sender.is_ready.wait(1.0):
            if not sender.is_alive():
                raise LockstepError("a sender of the fleet ended before it was ready")
            waited_s += 1.0
            if waited_s % _NOTE_S == 0:
                note(f"  encoded the batches of {sum(one.encoded for one in senders):,} of {agents:,} agents")
