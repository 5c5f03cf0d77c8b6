"""What became of a decision: what persons ordered, what was done step by step, and which nodes are out of service."""

from typing import Literal

from pydantic import AliasChoices, Field

from lockstep.verdict import Frozen

Act = Literal["isolate", "convert", "restart", "reattempt", "recycle", "drop_replica", "watch", "release"]
StepState = Literal["waiting", "begun", "done", "failed"]
ExecutionState = Literal["executing", "done", "failed", "undoing", "undone", "release_failed"]
OrderKind = Literal["approve", "reject", "undo"]
NodeOrderKind = Literal["test", "return", "rma", "repaired"]
IsolationState = Literal["isolated", "testing", "returning", "returned", "repair", "rma"]

UNFINISHED: tuple[ExecutionState, ...] = ("executing", "undoing")  # its job gets no other decision meanwhile
# A release that failed again and again is tried on, slowly, while its job is looked after; a person must look.
PURSUED: tuple[ExecutionState, ...] = (*UNFINISHED, "release_failed")
_MESSAGE = AliasChoices("message", "said")  # executions and isolations stored before have the second
OUT_OF_SERVICE: tuple[IsolationState, ...] = ("isolated", "testing", "returning", "repair", "rma")


class Order(Frozen):
    """What a person, or the policy in a person's name, wants to become of a decision; orders are only ever added."""

    decision: str
    kind: OrderKind
    who: str
    why: str = ""
    ts_ns: int = Field(ge=0)


class PartIdentity(Frozen):
    """By what the maker knows a part."""

    uuid: str | None = Field(None, max_length=100, description="such as NVML shows of a GPU")
    serial: str | None = Field(None, max_length=100)
    ticket: str | None = Field(None, max_length=100, description="the maker's or the site's number of the case")


class NodeOrder(Frozen):
    """What a person wants to become of a node that is out of service; orders are only ever added."""

    number: int = Field(0, ge=0, description="given by the database, in the order in which they were given")
    decision: str = Field(description="under which the node was isolated")
    node: str
    kind: NodeOrderKind
    who: str
    why: str = ""
    part: PartIdentity | None = Field(None, description="of an rma: what was sent back")
    ts_ns: int = Field(ge=0)


class Failure(Frozen):
    """A try of a step that went wrong."""

    ts_ns: int = Field(ge=0)
    message: str = Field(validation_alias=_MESSAGE)


class Step(Frozen):
    """One act of an execution. It is begun in writing before it is asked for, so that a crash leaves no doubt."""

    act: Act
    subject: str = Field(description="the node, the job, or the folder that a conversion makes")
    state: StepState = "waiting"
    tries: int = Field(0, ge=0)
    began_ns: int | None = None
    ended_ns: int | None = None
    message: str = Field("", validation_alias=_MESSAGE, description="the controller's last sentence")
    not_before_ns: int | None = Field(None, description="after a failure, when it is tried again")
    failures: tuple[Failure, ...] = Field((), description="the last tries that went wrong, the oldest first")
    is_half_done: bool = Field(False, description="a restart that has stopped the job and not yet started it again")


class Execution(Frozen):
    """One decision being carried out, or carried out."""

    decision: str
    incident: str
    job: str
    action: str
    component: str = Field(description="the part that the decision is about")
    state: ExecutionState
    ends_as: Literal["done", "failed", "undone"] = Field("done", description="its state once the last step is over")
    generation: int = Field(ge=0, description="of the lease under which it was written last")
    approved_by: str
    began_ns: int = Field(ge=0)
    ended_ns: int | None = None
    steps: tuple[Step, ...] = ()
    new_job: str | None = Field(None, description="the restarted job as the controller calls it")
    reason: str = Field("", description="why it ended as it did")
    unloadable: tuple[str, ...] = Field((), description="checkpoints from which the restarted job failed to start")

    @property
    def outcome(self) -> str:
        """Its state, or the one that it will have once releases that were set aside have come about."""
        return self.ends_as if self.state == "release_failed" else self.state


class Isolated(Frozen):
    """A node that we took out of service, and how far its recovery is."""

    node: str
    component: str
    decision: str
    job: str
    reason: str
    state: IsolationState
    since_ns: int = Field(ge=0)
    changed_ns: int = Field(ge=0)
    tests: int = Field(0, ge=0)
    message: str = Field("", validation_alias=_MESSAGE, description="of the last test, or who ended it")
    until_ns: int | None = Field(
        None, description="when its test or its release is due; None: by the options, or a person ends it"
    )
    last_order: int = Field(
        0,
        ge=0,
        validation_alias=AliasChoices("last_order", "heard"),
        description="number of the last order of a person that was followed",
    )
    part: PartIdentity | None = Field(None, description="what was sent back; None: nothing, or not reported")
    repaired_ns: int | None = Field(None, description="when a new part was in: its history begins there")


class Outcome(Frozen):
    """What an incident turned out to be, confirmed by a person or a vendor."""

    incident: str
    was_right: bool = Field(description="whether the part that was named was at fault")
    part: str | None = Field(None, description="the part that was at fault; None: none, or unknown")
    who: str
    why: str = ""
    ts_ns: int = Field(ge=0)
