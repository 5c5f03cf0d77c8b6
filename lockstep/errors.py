"""Every exception that Lockstep raises on purpose.

LockstepError
├── BadInput                 what a person or a program handed us is wrong; nothing was changed
│   ├── BadSettings          the settings, all complaints at once
│   ├── BadTopology          a topology that contradicts itself
│   ├── BadFlows             flows that cannot be planned on a topology
│   ├── BadScenario          a fault scenario that cannot be told
│   ├── BadRows              rows that do not fit their table; names column and row
│   ├── BadCapture           a case file; names file, column and row
│   ├── BadRing              a ring file, or its directory, that cannot be trusted or read; names it
│   │   └── RingNotReady     its writer has only begun; the same call may succeed later
│   └── BadBatch             a batch for the ingest gateway
├── NotPresent               this host, store or job does not have what was asked for
├── NotAllowed               the request carries no token that allows it
├── ChangedMeanwhile         what was to be changed is not what it was; look again first
├── StoreError
│   ├── StoreAway            cannot be reached now; the same call may succeed later
│   ├── StoreBusy            another process holds the embedded store
│   ├── StoreRefused         the store answered no: password, disk, statement
│   └── StoreVersionMismatch the store's schema is not the one this code knows
├── ControlAway              the control database cannot be reached now
├── GatewayFull              the gateway's log has no room; nothing was acknowledged
├── ServerRefused            a Lockstep server answered no to this client
│   └── ServerAway           no Lockstep server answers; the same call may succeed later
├── ControllerRefused        the job controller, or a command on one of its nodes, answered no or went wrong
├── ControllerDown           the job controller does not answer; what was asked for may be asked for again
│   └── HalfDone             it fell silent in the middle of a restart: the job may be stopped
├── DestinationAway          where an agent sends its batches cannot be reached now; they wait
├── ReceiverAway             a receiver of alerts does not answer, or not properly; its message waits
├── GroupBroken              the replicas of a job have to meet anew: a connection closed, or one was given up
├── JobOver                  the job has done its steps, without this process
├── SealBroken               what was sealed cannot be opened, or nothing can be sealed: a key is missing
└── LeaseLost                another process has taken over; stop acting
"""


class LockstepError(Exception):
    """Base of all our exceptions; its text is one sentence a person can act on."""


class BadInput(LockstepError):
    """Something handed to us is wrong; the text says what and where, and nothing was changed."""


class BadSettings(BadInput):
    """Settings that cannot be used, with all complaints at once."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__("these settings cannot be used:\n" + "\n".join(f"  - {line}" for line in complaints))
        self.complaints = complaints


class BadTopology(BadInput):
    """A topology that contradicts itself, with all complaints at once."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__("this topology cannot be used:\n" + "\n".join(f"  - {line}" for line in complaints))
        self.complaints = complaints


class BadFlows(BadInput):
    """Flows that cannot be planned, with all complaints at once."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__("these flows cannot be planned:\n" + "\n".join(f"  - {line}" for line in complaints))
        self.complaints = complaints


class BadScenario(BadInput):
    """A fault scenario that cannot be told on its cluster."""


class BadRows(BadInput):
    """Rows that do not fit their table; carries the first place that does not."""

    def __init__(self, problem: str, *, table: str, column: str | None = None, row: int | None = None) -> None:
        super().__init__(f"{_locate(table, column, row)}: {problem}")
        self.problem, self.table, self.column, self.row = problem, table, column, row


class BadCapture(BadInput):
    """A case file that cannot be used; carries the place of the first fault."""

    def __init__(self, problem: str, *, file: str, column: str | None = None, row: int | None = None) -> None:
        super().__init__(f"{_locate(file, column, row)}: {problem}")
        self.problem, self.file, self.column, self.row = problem, file, column, row


class BadRing(BadInput):
    """A ring file or its directory that cannot be used; `file` is its path as it may be printed."""

    def __init__(self, problem: str, *, file: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.problem, self.file = problem, file


class RingNotReady(BadRing):
    """A ring file whose writer has only begun, or began and died; the same call may succeed later."""


class BadBatch(BadInput):
    """A batch that the ingest gateway refuses; `slug` names the kind of refusal in the problem document."""

    def __init__(self, problem: str, *, slug: str = "bad-batch", status: int = 400) -> None:
        super().__init__(problem)
        self.slug, self.status = slug, status


class NotPresent(LockstepError):
    """What was asked for does not exist here; an answer, not a failure."""


class NotAllowed(LockstepError):
    """A request without a token that allows it; `status` and `slug` say in the problem document what is missing."""

    def __init__(self, problem: str, *, slug: str, status: int) -> None:
        super().__init__(problem)
        self.slug, self.status = slug, status


class ChangedMeanwhile(LockstepError):
    """Somebody else changed the same thing since it was read; nothing was overwritten."""


class StoreError(LockstepError):
    """The telemetry store could not do what was asked."""


class StoreAway(StoreError):
    """The store cannot be reached or has no resources now; the same call may succeed later."""


class StoreBusy(StoreError):
    """Another process holds the embedded store."""


class StoreRefused(StoreError):
    """The store answered no, and would again; `code` is ClickHouse's number for it."""

    def __init__(self, problem: str, code: int | None = None) -> None:
        super().__init__(problem)
        self.code = code


class StoreVersionMismatch(StoreError):
    """The schema in the store is newer than this code, or was changed behind its back."""


class ControlAway(LockstepError):
    """The control database cannot be reached now; the same call may succeed later."""


class GatewayFull(LockstepError):
    """The gateway's log has no room for another batch; the agent keeps it and tries again."""


class ServerRefused(LockstepError):
    """A Lockstep server answered no: `status` and `kind` are those of its problem document, `detail` its sentence."""

    def __init__(self, problem: str, status: int, *, kind: str = "about:blank", detail: str = "") -> None:
        super().__init__(problem)
        self.status, self.kind, self.detail = status, kind, detail or problem

    @property
    def is_passing(self) -> bool:
        """Whether the same question may be answered later: nobody there, too many questions, or a store away."""
        return self.status in (0, 429) or self.status >= 500


class ServerAway(ServerRefused):
    """No Lockstep server answers at this address now; the same call may succeed later."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, 0)


class ControllerRefused(LockstepError):
    """A job controller answered and did not do it; the text is for the audit trail."""


class ControllerDown(LockstepError):
    """The job controller does not answer, or not in time; the same request may succeed later."""


class HalfDone(ControllerDown):
    """A job controller fell silent in the middle of a restart: the job may be stopped and not yet started again."""


class DestinationAway(LockstepError):
    """Batches cannot be delivered now; the same call may succeed later."""


class ReceiverAway(LockstepError):
    """A receiver of alerts cannot be reached, or did not answer properly; the message is tried again later."""


class SealBroken(LockstepError):
    """What was sealed does not open, or nothing can be sealed: its key is missing, or it was changed."""


class GroupBroken(LockstepError):
    """The group of replicas can no longer be used: a connection has closed, or there is a newer generation."""


class JobOver(LockstepError):
    """The job has done all its steps; who is late has nothing left to do."""


class LeaseLost(LockstepError):
    """Another process holds the lease now; whoever sees this stops acting at once."""


def _locate(whole: str, column: str | None, row: int | None) -> str:
    return whole + (f", column {column}" if column else "") + (f", row {row}" if row is not None else "")
