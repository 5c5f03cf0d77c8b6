"""Breaks a running fabric as the turns of a story say, and heals it: all of it, when the block ends."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from lockstep.errors import BadStory, NotPresent
from lockstep.sim.timeline import Turn, turns_now
from testbed.fabric.fabric import Fabric
from testbed.fabric.management import find_interface
from testbed.faults.conditions import WIRE_EFFECTS, Failure, conditions, senders_of, silent_hosts
from testbed.faults.processes import Undo, kill, kill_host, list_processes, starve, stop
from testbed.faults.wires import Wires

Key = tuple[str, str | None, str | None]
_INSIDE_HOSTS = ("gpu", "pcie", "nvlink")
_PROCESS_EFFECTS = ("stopped", "killed", "starved", "gone")


def why_not(turn: Turn) -> str | None:
    """Return why a fabric and its processes cannot be broken like that; None when they can.

    What is left to the ranks themselves (lateness, missing and mismatched operations, pauses) is such a reason.
    """
    if turn.kind in _INSIDE_HOSTS:
        return f"{turn.part} is inside a host, and hosts of the testbed have no GPUs"
    if turn.effect not in (*WIRE_EFFECTS, *_PROCESS_EFFECTS, "silent"):
        return f"{turn.effect} is what ranks do themselves"
    if turn.above_bytes:
        return "a wire does not know how large an operation is"
    if turn.share < 1:
        return "a wire does not know steps"
    return None


class Breaker:
    """What is broken now; `pids_of` tells the processes of a rank or a host, by the names of the timeline.

    Without it no rank is known, and all processes in a host's namespace are the host's.
    """

    def __init__(self, fabric: Fabric, pids_of: Callable[[str], Sequence[int]] | None = None) -> None:
        self._fabric, self._pids_of = fabric, pids_of
        self._wires = Wires(fabric)
        self._failures: dict[Key, Failure] = {}
        self._undo: dict[Key, Undo] = {}
        self._silent: set[str] = set()

    def __enter__(self) -> "Breaker":
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    @property
    def broken(self) -> tuple[Turn, ...]:
        """What is broken now."""
        return tuple(failure.turn for failure in self._failures.values())

    def apply(self, turn: Turn) -> None:
        """Let a turn happen in full, whatever its moment: a failure besides those that are there, or a healing.

        NotPresent for what the fabric cannot do, BadStory for a part that it does not have; then nothing changes.
        """
        if turn.effect == "heal":
            return self.heal(turn.part)
        self._set({**self._failures, _key(turn): Failure(turn)})
        return None

    def heal(self, part: str | None = None) -> None:
        """Heal a part, or everything; who was killed stays dead."""
        self._set({key: old for key, old in self._failures.items() if part not in (None, old.turn.part)})

    def follow(self, timeline: tuple[Turn, ...], now_s: float) -> None:
        """Have broken exactly what a timeline says for a moment, flaps and ramps too; called again and again.

        What only ranks can do is left to them.
        """
        there = [turn for turn in turns_now(timeline, now_s) if why_not(turn) is None]
        self._set({_key(turn): Failure(turn, _step(turn, turn.level(now_s))) for turn in there})

    def _set(self, failures: dict[Key, Failure]) -> None:
        for key in failures.keys() - self._failures.keys():
            self._check(failures[key].turn)
        self._wires.bring_into(conditions(self._fabric.plan, failures.values()))
        self._silence(silent_hosts(failures.values()))
        for key in [key for key in self._undo if failures.get(key) != self._failures.get(key)]:
            self._undo.pop(key)()
        self._failures, before = failures, self._failures
        for key, failure in failures.items():
            if failure != before.get(key) and failure.turn.effect in _PROCESS_EFFECTS:
                self._undo[key] = self._hurt(failure)

    def _check(self, turn: Turn) -> None:
        if reason := why_not(turn):
            raise NotPresent(f"the testbed cannot do this to {turn.part or 'the job'}: {reason}")
        if turn.effect in WIRE_EFFECTS:
            senders_of(self._fabric.plan, turn)
        elif turn.kind == "host" and turn.name not in self._fabric.plan.hosts:
            raise BadStory(f"there is no {turn.part} in this fabric")
        elif turn.kind == "rank" and not self._pids(turn):
            raise BadStory(f"there is no process of {turn.part} in this fabric")

    def _hurt(self, failure: Failure) -> Undo:
        turn, level = failure
        match turn.effect:
            case "stopped":
                return stop(self._pids(turn))
            case "killed":
                return kill(self._pids(turn))
            case "gone":
                return kill_host(self._fabric, turn.name)
            case _:
                return starve(self._fabric, turn.name, self._pids(turn), 1 - level * (1 - (turn.amount or 0.0)))

    def _pids(self, turn: Turn) -> Sequence[int]:
        if self._pids_of is not None:
            return self._pids_of(turn.part or "")
        return list_processes(self._fabric, turn.name) if turn.kind == "host" else ()

    def _silence(self, hosts: Iterable[str]) -> None:
        """Cut these hosts off the management network, and let all others back."""
        wanted = set(hosts)
        for state, changed in (("down", wanted - self._silent), ("up", self._silent - wanted)):
            for host in changed:
                name = self._fabric.management.port_of(host)
                self._fabric.root.change(partial(_set_state, name=name, state=state))
        self._silent = wanted


def _step(turn: Turn, level: float) -> float:
    """Return how much of a failure is made: those that must be begun anew for a change grow in ten steps."""
    return level if turn.effect == "rate" else round(level, 1)


def _key(turn: Turn) -> Key:
    return turn.effect, turn.part, turn.side


def _set_state(route: Any, name: str, state: str) -> None:
    route.link("set", index=find_interface(route, name), state=state)
