"""What became of a decision: what persons ordered, what was done step by step, and which nodes are out of service."""

from typing import Literal

from pydantic import Field

from lockstep.verdict import Frozen

Act = Literal["isolate", "restart", "reattempt", "watch", "release"]
StepState = Literal["waiting", "begun", "done", "failed"]
ExecutionState = Literal["executing", "done", "failed", "undoing", "undone"]
OrderKind = Literal["approve", "reject", "undo"]
IsolationState = Literal["isolated", "testing", "returned", "repair"]

UNFINISHED: tuple[ExecutionState, ...] = ("executing", "undoing")


class Order(Frozen):
    """What a person, or the policy in a person's name, wants to become of a decision; orders are only ever added."""

    decision: str
    kind: OrderKind
    who: str
    why: str = ""
    ts_ns: int = Field(ge=0)


class Step(Frozen):
    """One act of an execution. It is begun in writing before it is asked for, so that a crash leaves no doubt."""

    act: Act
    subject: str = Field(description="the node or the job")
    state: StepState = "waiting"
    tries: int = Field(0, ge=0)
    began_ns: int | None = None
    ended_ns: int | None = None
    said: str = Field("", description="the controller's last sentence")
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


class Isolated(Frozen):
    """A node that we took out of service, and its way back."""

    node: str
    component: str
    decision: str
    job: str
    reason: str
    state: IsolationState
    since_ns: int = Field(ge=0)
    changed_ns: int = Field(ge=0)
    tests: int = Field(0, ge=0)
    said: str = Field("", description="what the last test said, or who ended it")


class Outcome(Frozen):
    """What an incident turned out to be, confirmed by a person or a vendor."""

    incident: str
    was_right: bool = Field(description="whether the part that was named was at fault")
    part: str | None = Field(None, description="the part that was at fault; None: none, or unknown")
    who: str
    why: str = ""
    ts_ns: int = Field(ge=0)
