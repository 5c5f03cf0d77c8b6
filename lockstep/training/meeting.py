"""Who is alive, and who works together: each process writes that it lives, and one of them proposes a generation.

A replica is given up when its beats have stopped, or an order says so. How long they must have stopped depends on
what is seen: a connection that has closed needs only enough to tell whose it was; where nothing is closed, such as
with a stopped process, three steps must have passed (Unicron's rule for a hang). A process that beats while its
training hangs is unresponsive: it does not propose a generation that is due, or does not answer when there is one,
and is given up for that. Whoever was given up is let in again when its training knows it, which its beats tell.
"""

import socket
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from lockstep.clock import Clock, SystemClock
from lockstep.errors import BadInput
from lockstep.in_job import (
    Announcement,
    Answer,
    Beat,
    Generation,
    InJobAct,
    JobFolder,
    Member,
    Order,
    Place,
    answer_name,
    nodes_of,
)
from lockstep.training.agreement import choose_members

STEPS_OF_A_HANG = 3  # Unicron's statistical monitor alarms at three times the mean iteration


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The place of this process in its job; the same for all but for `replica`, `stage`, `node`, `memory`."""

    folder: Path  # shared by all replicas, and by the controller; one for each job
    job: str
    replica: int
    replicas: int  # of the whole job
    micro_batches: int  # of a step, over all replicas
    node: str = field(default_factory=socket.gethostname)
    least: int = 1  # replicas, of each stage, with which the job goes on
    memory: Path | None = None  # a folder on tmpfs for snapshots
    disk: Path | None = None
    memory_every: int = 1  # steps
    disk_every: int = 100
    beat_s: float = 0.25
    silence_s: float = 1.5  # six beats
    answer_s: float = 60.0  # until one that lives must answer: it may first make a plan, and connect, 10 s each time
    start_s: float = 600.0  # is waited for the whole job at its start, and for answers until steps have been timed
    stage: int = 0
    stages: int = 1  # of each replica's pipeline, one process for each

    def __post_init__(self) -> None:
        if not 0 <= self.stage < self.stages:
            raise BadInput(f"stage={self.stage} is none of stages={self.stages}")
        if not 0 <= self.replica < self.replicas or not 1 <= self.least <= self.replicas <= self.micro_batches:
            raise BadInput(
                f"replica={self.replica} of replicas={self.replicas} with least={self.least} and "
                f"micro_batches={self.micro_batches} cannot work: each replica needs a micro-batch"
            )

    @property
    def can(self) -> InJobAct:
        """How the job goes on without one of its processes."""
        return "recycle" if self.stages > 1 else "drop_replica"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the others are waited for."""

    silence_s: float  # for a beat
    answer_s: float  # for what a process that beats has to do


class Meeting:
    """What this process knows of the others."""

    def __init__(self, options: TrainingOptions, clock: Clock | None = None) -> None:
        self._options, self._clock = options, clock or SystemClock()
        self.folder = JobFolder(options.folder)
        self.me = Member(replica=options.replica, stage=options.stage, start=uuid4().hex, node=options.node)
        self.now: Generation | None = None  # the newest that was seen
        self.speed_after: float | None = None  # that is announced
        self.was_left_out = False  # some generation since the first was without this process
        self._number = 0  # of our own last beat: silence is counted in these, so that a folder that hangs is nobody's
        self._tended = 0
        self._due: int | None = None  # since which of our own beats a generation is
        self._seen: dict[Member, tuple[int, int, bool]] = {}  # last beat, since when, and whether it ever changed
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._live, name="lockstep-beat", daemon=True)

    def open(self) -> None:
        """Begin to live for the others."""
        self.announce()
        self._beating.start()

    def announce(self) -> None:
        """Write what this job can do."""
        wanted = self._options
        announced = Announcement(
            job=wanted.job,
            can=(wanted.can,),
            replicas=wanted.replicas,
            stages=wanted.stages,
            micro_batches=wanted.micro_batches,
            speed_after=self.speed_after,
        )
        self.folder.write("job.json", announced)

    def close(self) -> None:
        """Leave: whoever still needs this replica goes on without it."""
        self._left.set()
        self._beating.join()
        with suppress(FileNotFoundError):
            (self.folder.path / self._beat_name).unlink()

    def beat(self) -> None:
        """Write that this process lives."""
        beat = Beat(member=self.me, number=self._number + 1, ts_ns=self._clock.now_ns(), generation=self._now_number)
        self.folder.write(self._beat_name, beat)
        self._number = beat.number

    @property
    def lived_s(self) -> float:
        """For how long this process has told that it lives: the clock by which silence is measured."""
        return self._number * self._options.beat_s

    @property
    def is_member(self) -> bool:
        return self.now is not None and self.now.holds(self.me)

    def move_on(self) -> bool:
        """Take note of the newest generation; return whether it is a newer one."""
        newest = self.folder.newest_generation(self._now_number)
        if newest is not None:
            self.now, self._due = newest, None
            self.was_left_out |= not self.is_member
        return newest is not None

    def has_newer(self) -> bool:
        """Return whether there is a newer generation, without taking note of it."""
        return self.folder.newest_generation(self._now_number) is not None

    def wait(self, timeout_s: float) -> None:
        """Wait a moment."""
        self._clock.wait(self._left, timeout_s)

    def tend(
        self,
        patience: Patience,
        *,
        unresponsive: Collection[Member] = (),
        takes_new: bool = False,
        is_broken: bool = False,
    ) -> None:
        """Propose a generation if it is this replica's turn and there is a reason: a lost one, an order, a new one.

        `is_broken`: the generation cannot go on as it is, even if nobody is lost.
        """
        now = self.now
        if now is None or not now.holds(self.me) or self._tended == self._number:
            return  # nothing can have changed since our own last beat
        self._tended = self._number
        beats, orders = self._poll(), list(self.folder.orders())
        silent = {member for member in now.members if self._is_lost(member, beats, patience.silence_s)}
        late = self._find_late(silent.union(unresponsive), orders, patience.answer_s, is_broken=is_broken)
        if late is None:
            return
        late.update(unresponsive)
        for order in orders:
            if self._obey(order, beats, silent | late):
                return
        new = [beat.member for beat in beats.values() if self._is_new(beat)] if takes_new else []
        if silent or late or new or is_broken:
            causes = {"lost": silent, "lives and does not answer": late - silent, "joins": new}
            told = [f"{what}: {self._names(whom)}" for what, whom in causes.items() if whom]
            self._propose(beats, silent | late, now.out, "; ".join(told) or "a connection broke, and everybody lives")

    def begin(self, waited_s: float) -> None:
        """Propose the first generation of processes that all wait for one, if it is this replica's turn."""
        beats = self._poll()
        members = self.now.members if self.now else ()
        if members and (waited_s < 2 * self._options.silence_s or any(map(self._is_alive, members))):
            return  # they take us in
        waiting = [beat.member for _, beat in sorted(beats.items()) if self._is_waiting(beat)]
        is_whole = len(waiting) >= self._options.replicas * self._options.stages
        if self._find_lack(waiting) or waiting[0] != self.me or not (is_whole or waited_s >= self._options.start_s):
            return
        self._propose(beats, members, (), "the job starts")

    def answer(self, order: Order, outcome: str, message: str) -> None:
        """Answer an order, unless somebody has."""
        assert self.now is not None
        told = {"mark": order.mark, "outcome": outcome, "message": message, "generation": self.now.number}
        self.folder.write_first(answer_name(order), Answer.model_validate(told))

    def _find_late(
        self, lost: Collection[Member], orders: Sequence[Order], answer_s: float, *, is_broken: bool
    ) -> set[Member] | None:
        """Return whose turn it was before this one's to propose what is due; None while it is another's turn."""
        assert self.now is not None
        out = {node for order in orders for node in order.nodes if order.act != "admit"}
        leaders = [each for each in self.now.members if each not in lost and each.node not in out] or [self.me]
        if not lost and not is_broken:
            self._due = None
        elif self._due is None:
            self._due = self._number
        waited_s = (self._number - self._due) * self._options.beat_s if self._due is not None else 0.0
        over = int(waited_s / answer_s)  # one turn after the other
        return set(leaders[: leaders.index(self.me)]) if self.me in leaders[: over + 1] else None

    def _obey(self, order: Order, beats: dict[Place, Beat], silent: Collection[Member]) -> bool:
        """Carry out or answer an order; return whether it made a generation."""
        now = self.now
        assert now is not None
        nodes = nodes_of(now)
        lost = [f"{node} ({', '.join(map(self._name, nodes[node]))})" for node in order.nodes if node in nodes]
        left = [member for member in now.members if member.node not in order.nodes]
        if order.act == "admit":
            self.answer(order, "done", f"replicas on {', '.join(order.nodes)} may join")
            out = tuple(node for node in now.out if node not in order.nodes)
            return out != now.out and self._propose(beats, silent, out, "a node is admitted again", order.mark)
        if order.act != self._options.can:
            self.answer(order, "refused", f"this job cannot {order.act}")
        elif now.mark == order.mark and not lost:
            self.answer(order, "done", f"generation {now.number} goes on with {len(now.members)} {self._kind}s")
        elif not lost:
            where = f"generation {now.number} is on {', '.join(order.nodes)}"
            self.answer(order, "already", f"no {self._kind} of {where}")
        elif order.generation != now.number:
            self.answer(order, "refused", f"it is for generation {order.generation}, and this is {now.number}")
        elif lack := self._find_lack(left):
            self.answer(order, "refused", lack)
        else:
            out = tuple(sorted({*now.out, *order.nodes}))
            return self._propose(beats, silent, out, f"ordered out: {'; '.join(lost)}", order.mark)
        return False

    @property
    def _kind(self) -> str:
        return "worker" if self._options.stages > 1 else "replica"

    def _name(self, member: Member) -> str:
        return f"replica {member.replica}" + (f", stage {member.stage}" if self._options.stages > 1 else "")

    def _names(self, members: Collection[Member]) -> str:
        in_order = sorted(members, key=lambda each: each.place)
        return ", ".join(f"{self._name(member)} on {member.node}" for member in in_order)

    def _find_lack(self, members: Collection[Member]) -> str | None:
        """Return why these are too few to go on with; None where they are not."""
        least, stages = self._options.least, self._options.stages
        for stage in range(stages):
            left = sum(member.stage == stage for member in members)
            if left < least:
                where = f" of stage {stage}" if stages > 1 else ""
                return f"{left} replicas{where} would be left, and {least} are needed"
        return None

    def _propose(
        self,
        beats: dict[Place, Beat],
        silent: Collection[Member],
        out: Collection[str],
        cause: str,
        mark: str | None = None,
    ) -> bool:
        """Write the next generation of all who live, unless somebody has; the one that is read counts."""
        number = self._now_number + 1
        old = self.now.members if self.now else ()
        living = {each: beat for each, beat in beats.items() if beat.member in old or self._is_waiting(beat)}
        members = choose_members(self.now, living, silent, out)
        if self._find_lack(members):
            return False
        made = Generation(number=number, members=members, cause=cause, mark=mark, out=tuple(sorted(out)))
        self.folder.write_first(f"generations/{number}.json", made)
        return True

    def _poll(self) -> dict[Place, Beat]:
        """Read all beats, and remember since when each is what it is."""
        beats = self.folder.beats()
        for beat in beats.values():
            known = self._seen.get(beat.member)
            if known is None or known[0] != beat.number:
                self._seen[beat.member] = (beat.number, self._number, known is not None or beat.member == self.me)
        return beats

    def _is_lost(self, member: Member, beats: dict[Place, Beat], patience_s: float) -> bool:
        other = beats.get(member.place)
        return self._is_silent(member, patience_s) or (other is not None and other.member.start != member.start)

    def _is_silent(self, member: Member, patience_s: float) -> bool:
        _, since, _ = self._seen.setdefault(member, (-1, self._number, False))
        return member != self.me and (self._number - since) * self._options.beat_s >= patience_s

    def _is_alive(self, member: Member) -> bool:
        _, _, has_changed = self._seen.get(member, (0, 0, False))
        return has_changed and not self._is_silent(member, self._options.silence_s)

    def _is_waiting(self, beat: Beat) -> bool:
        """Return whether a process wants to be let in: its training knows that it is in no generation."""
        knows = beat.generation == self._now_number and not (self.now and self.now.holds(beat.member))
        return knows and self._is_alive(beat.member)

    def _is_new(self, beat: Beat) -> bool:
        return self.now is not None and beat.member.node not in self.now.out and self._is_waiting(beat)

    @property
    def _now_number(self) -> int:
        return self.now.number if self.now else 0

    @property
    def _beat_name(self) -> str:
        return f"beats/{self.me.replica}.{self.me.stage}.json"

    def _live(self) -> None:
        while not self._left.is_set():
            with suppress(OSError):  # a folder that fails for a while: what is not written is silence
                self.beat()
            self._clock.wait(self._left, self._options.beat_s)
