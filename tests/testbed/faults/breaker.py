"""Breaks a running fabric and its processes as the faults of a scenario say, and heals all when the block ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lockstep.errors import BadScenario, NotPresent
from simulator.faults import Fault, active_faults
from tests.testbed.fabric.cgroups import make_group, move_into, remove_group
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import set_state
from tests.testbed.fabric.namespaces import identify
from tests.testbed.fabric.sweeping import kill_all_in, processes_in
from tests.testbed.faults.link_conditions import (
    WIRE_EFFECTS,
    Failure,
    LinkConditions,
    conditions,
    senders_of,
    silent_hosts,
)

Key = tuple[str, str | None, str | None]
_INSIDE_HOSTS = ("gpu", "pcie", "nvlink")
_PROCESS_EFFECTS = ("stopped", "killed", "starved", "gone")
Undo = Callable[[], None]

_HOG = "while True: pass"
_LOWEST = 19  # niceness: whoever has work to do comes first, and the hog takes all that is left


def stop(pids: Sequence[int]) -> Undo:
    """Stop processes where they are; undone, they go on as if nothing had been."""
    _signal(pids, signal.SIGSTOP)
    return lambda: _signal(pids, signal.SIGCONT)


def kill(pids: Sequence[int]) -> Undo:
    """Kill processes; nobody brings them back."""
    _signal(pids, signal.SIGKILL)
    return lambda: None


def kill_host(fabric: Fabric, host: str) -> Undo:
    inode = identify(fabric.namespace_of(host))
    kill_all_in({inode} if inode else set())
    return lambda: None


def list_processes(fabric: Fabric, host: str) -> list[int]:
    inode = identify(fabric.namespace_of(host))
    return sorted(processes_in({inode})) if inode else []


def starve(fabric: Fabric, host: str, pids: Sequence[int], share: float) -> Undo:
    """Leave processes of a host only a share of the time: they and a busy process get a share of one core together.

    In every tenth of a second the busy process uses up what the group may have, and then all of them stand still.
    Other hosts keep their cores, which a busy process without a limit would take from them all.
    """
    group = f"{fabric.prefix}-{host}"
    make_group(group, share)
    hog = fabric.run_in(host, [sys.executable, "-S", "-c", _HOG], stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, hog.pid, _LOWEST)
    move_into(group, [*pids, hog.pid])

    def feed() -> None:
        hog.kill()
        hog.wait()
        remove_group(group)

    return feed


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended before
            os.kill(pid, number)


def why_not(fault: Fault) -> str | None:
    """Return why a fabric and its processes cannot be broken like that; None when they can.

    What is left to the ranks themselves (lateness, missing and mismatched operations, pauses) is such a reason.
    """
    if fault.kind in _INSIDE_HOSTS:
        return f"{fault.part} is inside a host, and hosts of the testbed have no GPUs"
    if fault.effect not in (*WIRE_EFFECTS, *_PROCESS_EFFECTS, "silent"):
        return f"{fault.effect} is what ranks do themselves"
    if fault.above_bytes:
        return "a wire does not know how large an operation is"
    if fault.share < 1:
        return "a wire does not know steps"
    return None


class Breaker:
    """What is broken now; `pids_of` tells the processes of a rank or a host, by the names of the timeline.

    Without it no rank is known, and all processes in a host's namespace are the host's.
    """

    def __init__(self, fabric: Fabric, pids_of: Callable[[str], Sequence[int]] | None = None) -> None:
        self._fabric, self._pids_of = fabric, pids_of
        self._links = LinkConditions(fabric)
        self._failures: dict[Key, Failure] = {}
        self._undo: dict[Key, Undo] = {}
        self._silent: set[str] = set()

    def __enter__(self) -> "Breaker":
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    @property
    def broken(self) -> tuple[Fault, ...]:
        return tuple(failure.fault for failure in self._failures.values())

    def apply(self, fault: Fault) -> None:
        """Let a fault happen in full, whatever its moment: a failure besides those that are there, or a healing.

        NotPresent for what the fabric cannot do, BadScenario for a part that it does not have; then nothing changes.
        """
        if fault.effect == "heal":
            return self.heal(fault.part)
        self._set({**self._failures, _key(fault): Failure(fault)})
        return None

    def heal(self, part: str | None = None) -> None:
        """Heal a part, or everything; who was killed stays dead."""
        self._set({key: old for key, old in self._failures.items() if part not in (None, old.fault.part)})

    def follow(self, timeline: tuple[Fault, ...], now_s: float) -> None:
        """Have broken exactly what a timeline says for a moment, flaps and ramps too; called again and again.

        What only ranks can do is left to them.
        """
        there = [fault for fault in active_faults(timeline, now_s) if why_not(fault) is None]
        self._set({_key(fault): Failure(fault, _step(fault, fault.level(now_s))) for fault in there})

    def _set(self, failures: dict[Key, Failure]) -> None:
        for key in failures.keys() - self._failures.keys():
            self._check(failures[key].fault)
        self._links.bring_into(conditions(self._fabric.plan, failures.values()))
        self._silence(silent_hosts(failures.values()))
        for key in [key for key in self._undo if failures.get(key) != self._failures.get(key)]:
            self._undo.pop(key)()
        self._failures, before = failures, self._failures
        for key, failure in failures.items():
            if failure != before.get(key) and failure.fault.effect in _PROCESS_EFFECTS:
                self._undo[key] = self._hurt(failure)

    def _check(self, fault: Fault) -> None:
        if reason := why_not(fault):
            raise NotPresent(f"the testbed cannot do this to {fault.part or 'the job'}: {reason}")
        if fault.effect in WIRE_EFFECTS:
            senders_of(self._fabric.plan, fault)
        elif fault.kind == "host" and fault.name not in self._fabric.plan.hosts:
            raise BadScenario(f"there is no {fault.part} in this fabric")
        elif fault.kind == "rank" and not self._pids(fault):
            raise BadScenario(f"there is no process of {fault.part} in this fabric")

    def _hurt(self, failure: Failure) -> Undo:
        fault, level = failure
        match fault.effect:
            case "stopped":
                return stop(self._pids(fault))
            case "killed":
                return kill(self._pids(fault))
            case "gone":
                return kill_host(self._fabric, fault.name)
            case _:
                return starve(self._fabric, fault.name, self._pids(fault), 1 - level * (1 - (fault.amount or 0.0)))

    def _pids(self, fault: Fault) -> Sequence[int]:
        if self._pids_of is not None:
            return self._pids_of(fault.part or "")
        return list_processes(self._fabric, fault.name) if fault.kind == "host" else ()

    def _silence(self, hosts: Iterable[str]) -> None:
        """Cut these hosts off the management network, and let all others back."""
        wanted = set(hosts)
        for state, changed in (("down", wanted - self._silent), ("up", self._silent - wanted)):
            for host in changed:
                set_state(self._fabric.root, self._fabric.management.port_of(host), state)
        self._silent = wanted


def _step(fault: Fault, level: float) -> float:
    """Return how much of a failure is made: those that must be begun anew for a change grow in ten steps."""
    return level if fault.effect == "rate" else round(level, 1)


def _key(fault: Fault) -> Key:
    return fault.effect, fault.part, fault.side
