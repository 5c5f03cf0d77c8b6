"""What a replica and a worker of a pipeline have in common: they meet, agree, and count what they have settled."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import nn

from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import GroupBroken, JobOver
from lockstep.in_job import Effect, Generation, Member, Over
from lockstep.training.group import Group
from lockstep.training.meeting import STEPS_OF_A_HANG, Meeting, Patience, TrainingOptions
from lockstep.training.state import Snapshots, adopt_state, check_model, pack, take_state, unpack
from lockstep.verdict import Frozen

_POLL_S = 0.02  # between two readings at files that others write
_Told = TypeVar("_Told", bound=Frozen)
_MEASURED = 3  # steps after a change that tell the new speed
_KEPT = 10  # steps by which the speed of now is known


class Pace:
    """The settled steps of a replica."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._settled_ns: int | None = None
        self._generation = 0
        self._took_s: list[float] = []  # in this generation, without the first
        self._before_s = 0.0
        self._standstill_s, self._first = 0.0, 0

    @property
    def step_s(self) -> float:
        """What a step takes; 0 where it is not known."""
        return sum(self._took_s) / len(self._took_s) if self._took_s else self._before_s

    def settle(self, generation: int, step: int) -> Effect | None:
        """Count a step; return the effect of the generation when there is something new to tell of it."""
        now_ns = self._clock.monotonic_ns()
        took_s = (now_ns - (self._settled_ns or now_ns)) / NS_PER_S
        self._settled_ns = now_ns
        if generation == self._generation:
            self._took_s = [*self._took_s, took_s][-_KEPT:]
            is_new = len(self._took_s) == _MEASURED
        else:
            is_new = self._generation > 0
            self._before_s, self._generation, self._first = self.step_s, generation, step
            self._standstill_s, self._took_s = max(0.0, took_s - self._before_s), []
        return self._tell() if is_new and self._before_s else None

    def _tell(self) -> Effect:
        speed = self._before_s / self.step_s if len(self._took_s) >= _MEASURED else None
        return Effect(
            generation=self._generation, step=self._first, standstill_s=self._standstill_s, speed_after=speed
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which one of all: the program must make the same of it wherever it is worked on."""

    step: int
    number: int


class Participant(ABC):
    """A process of the job: in its newest generation, or on the way into the next."""

    def __init__(
        self, options: TrainingOptions, model: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock | None = None
    ) -> None:
        check_model(model)
        self._options, self._model, self._optimizer = options, model, optimizer
        clock = clock or SystemClock()
        self._meeting, self._pace = Meeting(options, clock), Pace(clock)
        part = f"stage-{options.stage}" if options.stages > 1 else ""
        self._snapshots = Snapshots(*(place and place / part for place in (options.memory, options.disk)))
        self.step = 0
        self._until = 0
        self._is_live = False  # it holds the state in which the step of the others begins
        self._group: Group | None = None
        self._torn_s = 0.0  # since when a connection of the group that is waited for is closed; 0: none is

    def __enter__(self) -> Self:
        self._meeting.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_group()
        self._meeting.close()

    @property
    def members(self) -> tuple[Member, ...]:
        """Who works together now."""
        return self._meeting.now.members if self._meeting.now else ()

    @abstractmethod
    def _agree(self, now: Generation) -> None:
        """Come to terms with the members of a generation, and take over what this process lacks."""

    def _leave_group(self) -> None:
        if self._group:
            self._group.give_up()
        self._group = None

    def _count_step(self) -> None:
        """Count the step that is settled, tell what it says of this generation, and keep the state."""
        now = self._meeting.now
        assert now is not None
        self.step += 1
        effect, me = self._pace.settle(now.number, self.step), self._meeting.me
        if effect is not None and now.members[0] == me:
            self._meeting.folder.write(f"effects/{now.number}.json", effect)
        if self.step % self._options.memory_every == 0:
            self._snapshots.save("memory", self.step, take_state(self._model, self._optimizer))
        if self._peers(now)[0] == me and self.step % self._options.disk_every == 0:
            self._snapshots.save("disk", self.step, take_state(self._model, self._optimizer))

    def _peers(self, now: Generation) -> list[Member]:
        """Return the members that hold the same state as this one."""
        return [member for member in now.members if member.stage == self._options.stage]

    def _tell_end(self) -> None:
        if self.step >= self._until:
            self._meeting.folder.write("over.json", Over(step=self.step))

    @property
    def _patience(self) -> Patience:
        """How long processes are waited for that have nothing to do but to wait, too."""
        hang_s, wanted = STEPS_OF_A_HANG * self._pace.step_s, self._options
        return Patience(wanted.silence_s, max(wanted.answer_s, hang_s) if hang_s else wanted.start_s)

    @property
    def _patience_in_step(self) -> Patience:
        hang_s, patience = STEPS_OF_A_HANG * self._pace.step_s, self._patience
        return replace(patience, silence_s=max(patience.silence_s, hang_s))

    def _poll(self, is_torn: bool) -> None:
        """See, while others are waited for, whether they will ever come; who has closed a connection may be dead."""
        meeting = self._meeting
        meeting.tend(self._patience if is_torn else self._patience_in_step)
        if meeting.has_newer():
            raise GroupBroken("there is a newer generation")
        self._torn_s = (self._torn_s or meeting.lived_s) if is_torn else 0.0
        if is_torn and meeting.lived_s - self._torn_s > self._stuck_s:
            raise GroupBroken("a connection has closed, and everybody lives")

    @property
    def _stuck_s(self) -> float:
        """After how long nobody is lost by whom a broken group could be explained."""
        return self._options.silence_s + 2 * self._options.beat_s

    def _let_in(self) -> bool:
        """Let new processes in between two steps; return whether there is a generation to be joined."""
        self._meeting.tend(self._patience_in_step, takes_new=True)
        return self._group is None or self._meeting.has_newer()

    def _meet(self, *, is_broken: bool) -> None:
        """Join the newest generation and agree with its members, as often as it takes."""
        while True:
            now = self._await_generation(is_broken=is_broken)
            try:
                self._agree(now)
                return
            except GroupBroken:
                is_broken = True

    def _await_generation(self, *, is_broken: bool) -> Generation:
        """Wait for a new generation with this process in it; JobOver when the job ends without it."""
        self._leave_group()
        meeting, began_s = self._meeting, self._meeting.lived_s
        while not (meeting.move_on() and meeting.is_member):
            waited_s = meeting.lived_s - began_s
            if meeting.is_member:
                meeting.tend(self._patience, is_broken=is_broken and waited_s > self._stuck_s)
            else:
                meeting.begin(waited_s)
            over = meeting.folder.read("over.json", Over)
            is_needed = meeting.is_member and self.step < self._until
            if over is not None and over.step >= self._until and not is_needed:
                raise JobOver(f"the job has done its {over.step} steps without replica {meeting.me.replica}")
            meeting.wait(_POLL_S)
        assert meeting.now is not None
        self._is_live &= not meeting.was_left_out  # the others have gone on without this one
        meeting.was_left_out = False
        return meeting.now

    def _exchange(self, now: Generation, mine: _Told) -> list[_Told]:
        """Write this process's report, and wait for those of all other members."""
        names = {each: f"reports/{now.number}.{each.replica}.{each.stage}.json" for each in now.members}
        self._meeting.folder.write(names[self._meeting.me], mine)
        return self._await_files(names, type(mine))

    def _await_files(self, names: Mapping[Member, str], kind: type[_Told]) -> list[_Told]:
        """Wait for what members of the generation write; who lives and does not write is given up in the end."""
        meeting, began_s = self._meeting, self._meeting.lived_s
        while True:
            found = {by: each for by, name in names.items() if (each := meeting.folder.read(name, kind)) is not None}
            if len(found) == len(names):
                return list(found.values())
            is_late = meeting.lived_s - began_s > self._patience.answer_s
            meeting.tend(self._patience, unresponsive=names.keys() - found.keys() if is_late else ())
            if meeting.has_newer():
                raise GroupBroken("there is a newer generation")
            meeting.wait(_POLL_S)

    def _connect(self, name: str, members: Sequence[Member]) -> Group:
        path = self._options.folder / "groups"
        path.mkdir(mode=0o700, exist_ok=True)
        return Group(path / name, members.index(self._meeting.me), len(members), self._poll)

    def _share_state(self, now: Generation, giver: Member, takers: Sequence[Member]) -> None:
        """Give the state to those who lack it, or take it, beside the group of all."""
        some = (giver, *takers)
        if not takers or self._meeting.me not in some:
            return
        group = self._connect(f"{now.number}.state-{self._options.stage}", some)
        try:
            self._pass_state(group, is_giver=self._meeting.me == giver)
        finally:
            group.give_up()

    def _pass_state(self, group: Group, *, is_giver: bool) -> None:
        packed = pack(take_state(self._model, self._optimizer)) if is_giver else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([packed.numel()])
        group.broadcast(size, 0)
        values = packed if is_giver else torch.empty(int(size), dtype=torch.uint8)
        group.broadcast(values, 0)
        if not is_giver:
            adopt_state(unpack(values), self._model, self._optimizer)
