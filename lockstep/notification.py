"""Alerts and the notifications that receivers get of them, as they begin, change and end."""

from typing import Literal

from pydantic import Field

from lockstep.alert_settings import Family
from lockstep.verdict import Frozen, Grade, Severity

NotificationKind = Literal[
    "incident.opened",
    "incident.updated",
    "incident.closed",
    "decision.proposed",
    "decision.settled",
    "action.executed",
    "action.failed",
    "action.undone",
    "action.settled",
    "lockstep.troubled",
    "lockstep.recovered",
    "lockstep.test",
]


class Alert(Frozen):
    """One thing a person must know: an incident, a proposal, an action, or a trouble of Lockstep itself."""

    subject: str = Field(description="the incident's id; others have their family before it, such as action:d1")
    family: Family
    job: str = Field(description="empty: of no job")
    component: str
    fault_class: str = Field(description="class of the verdict; `lockstep` for troubles of our own")
    grade: Grade = Field(description="how sure it is")
    severity: Severity = Field("warning", description="how bad it is")
    mark: str = Field(description="what a person must know of it; a change of it is worth a notification")
    since_ns: int
    slowdown: float | None = Field(None, description="of an incident: step time now over before; None: unknown")
    headline: str
    reason: str
    facts: dict[str, str] = Field(default_factory=dict, description="figures for people, by what they are")
    link: str = Field("", description="path of the page that has more")


class Notification(Frozen):
    """One message to one receiver; its id is the same at each try."""

    id: str
    kind: NotificationKind
    key: str = Field(description="by which a receiver knows what belongs together: the (first) incident's id")
    ts_ns: int
    alerts: tuple[Alert, ...] = Field(min_length=1)
    before: Alert | None = Field(None, description="of an update: what was last reported")


class Thread(Frozen):
    """What a receiver knows of an alert so far."""

    target: str
    subject: str
    key: str
    number: int = Field(ge=0, description="messages so far")
    reported_ns: int
    is_over: bool = False
    alert: Alert = Field(description="as it was last reported")

    @property
    def id(self) -> str:
        return f"{self.target}/{self.subject}"
