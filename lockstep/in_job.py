"""What a job that can lose processes and its controller write for each other: small files in one shared directory.

Each file is written whole under another name and then renamed, or linked where only the first writer may win: of two
who propose the next generation one does, and the other reads what it became. A generation is a set of processes that
work together; whoever is not in the newest one has nothing to say. An order is bound to the generation it was given
for and carries the decision's mark, so that it is carried out once, and never against a job that has moved on.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar
from uuid import uuid4

from pydantic import Field, ValidationError

from lockstep.verdict import Frozen

Place = tuple[int, int]  # replica and stage
InJobAct = Literal["drop_replica", "recycle"]
IN_JOB_ACTS: tuple[InJobAct, ...] = ("drop_replica", "recycle")


class Member(Frozen):
    """One process of the job, for as long as it lives."""

    replica: int = Field(ge=0)
    stage: int = Field(0, ge=0, description="of the replica's pipeline")
    start: str = Field(description="drawn by the process: one that comes back is another")
    node: str

    @property
    def place(self) -> "Place":
        return self.replica, self.stage


class Beat(Frozen):
    """That a process lives: written again and again."""

    member: Member
    number: int = Field(ge=0, description="one more each time")
    generation: int = Field(0, ge=0, description="the newest that its training has taken note of; 0: none")
    ts_ns: int = Field(ge=0)


class Generation(Frozen):
    """The replicas that work together from now on."""

    number: int = Field(ge=1)
    members: tuple[Member, ...] = Field(min_length=1, description="by replica and stage")
    cause: str
    mark: str | None = Field(None, description="of the order that it carries out")
    out: tuple[str, ...] = Field((), description="nodes that were ordered out, which nobody joins from")

    def holds(self, member: Member) -> bool:
        """Return whether a process is in it, and not merely one of the same number before or after."""
        return member in self.members


class Announcement(Frozen):
    """What a job says that it can do, and in which shape it is."""

    job: str
    can: tuple[InJobAct, ...]
    replicas: int = Field(ge=1, description="when it is whole")
    stages: int = Field(1, ge=1, description="of each replica's pipeline")
    micro_batches: int = Field(ge=1, description="of a step, over all replicas")
    speed_after: float | None = Field(None, description="share of its speed without one process; None: unknown")


class Order(Frozen):
    """What the controller wants of the job."""

    mark: str
    act: Literal["drop_replica", "recycle", "admit"]
    nodes: tuple[str, ...]
    generation: int = Field(description="that it was given for")


class Answer(Frozen):
    """What became of an order."""

    mark: str
    outcome: Literal["done", "already", "refused"]
    message: str
    generation: int = Field(description="in which it holds")


class Effect(Frozen):
    """What a generation has cost and brought, as its first replica measures it."""

    generation: int
    step: int = Field(description="the first one that was settled in it")
    standstill_s: float = Field(description="from the last settled step to this one, less what a step takes")
    speed_after: float | None = Field(None, description="share of the speed before; None: not measured yet")


class Over(Frozen):
    """That the job has done what it was asked for."""

    step: int


_Any = TypeVar("_Any", bound=Frozen)


class JobFolder:
    """The files of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, record: Frozen) -> None:
        """Write a file whole, in place of the one before."""
        os.replace(self._draft(name, record), self.path / name)

    def write_first(self, name: str, record: Frozen) -> bool:
        """Write a file if there is none; return whether it is ours."""
        draft = self._draft(name, record)
        try:
            os.link(draft, self.path / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def read(self, name: str, kind: type[_Any]) -> _Any | None:
        """Return what a file says; None where there is none, or a foreign one."""
        with suppress(FileNotFoundError, ValidationError):
            return kind.model_validate_json((self.path / name).read_bytes())
        return None

    def beats(self) -> dict[Place, Beat]:
        """Return the last beat of each process that ever lived, by its place."""
        found = (self.read(name, Beat) for name in self._list("beats", ".json"))
        return {beat.member.place: beat for beat in found if beat}

    def newest_generation(self, above: int = 0) -> Generation | None:
        """Return the newest one; None where there is none newer than `above`."""
        return [None, *self.generations(above)][-1]

    def generations(self, above: int = 0) -> Iterator[Generation]:
        """Yield those newer than `above`, the oldest first."""
        while (found := self.read(f"generations/{above + 1}.json", Generation)) is not None:
            yield found
            above += 1

    def orders(self) -> Iterator[Order]:
        """Yield the orders that have no answer, in the order of their names."""
        for name in self._list("orders", ".json"):
            order = self.read(name, Order)
            if order is not None and not (self.path / answer_name(order)).exists():
                yield order

    def _list(self, folder: str, ending: str) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(f"{folder}/{name}" for name in os.listdir(self.path / folder) if name.endswith(ending))
        return []

    def _draft(self, name: str, record: Frozen) -> Path:
        path = self.path / f"{name}.{uuid4().hex}.draft"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(record.model_dump_json())
        return path


def order_name(order: Order) -> str:
    """Return the file of an order; the same decision may be ordered again for a later generation."""
    return f"orders/{order.mark}.{order.act}.{order.generation}.json"


def answer_name(order: Order) -> str:
    """Return the file of its answer."""
    return f"answers/{order.mark}.{order.act}.{order.generation}.json"


def nodes_of(generation: Generation) -> Mapping[str, tuple[Member, ...]]:
    """Return the members by the node they are on."""
    nodes = dict.fromkeys(member.node for member in generation.members)
    return {node: tuple(each for each in generation.members if each.node == node) for node in nodes}
