"""Alerts: who gets them, by the section [alerts] of the settings file, and what they are told."""

import base64
import binascii
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from lockstep.sections import Section
from lockstep.verdict import Frozen, Grade, Severity

TargetKind = Literal["webhook", "alertmanager", "slack", "pagerduty", "email"]
Family = Literal["incident", "decision", "action", "lockstep"]
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

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
MOST_TARGETS = 64  # each has a thread of its own while it is sent to
_SECRET_PREFIX = "whsec_"  # noqa: S105  # what Standard Webhooks put before a secret, no secret itself
_KEY_BYTES = range(24, 65)  # what Standard Webhooks ask of a key
_SCHEMES = {"email": ("smtp", "smtps", "smtp-plain")}
_HTTP = ("https", "http")
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def decode_key(secret: str) -> bytes:
    """Return the key of a webhook's secret: base64 of 24 to 64 bytes, with or without whsec_."""
    try:
        key = base64.b64decode(secret.strip().removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a webhook's secret is whsec_ and base64, as Standard Webhooks describe") from None
    if len(key) not in _KEY_BYTES:
        raise ValueError(f"a webhook's secret has 24 to 64 bytes, and this one has {len(key)}")
    return key


def _check_allowed(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        if not _HOST_NAME.fullmatch(value):
            raise ValueError(f"{value!r} is neither a network such as 10.0.0.0/8 nor a name of a host") from None
    return value


Allowed = Annotated[str, AfterValidator(_check_allowed)]
Address = Annotated[str, Field(pattern=r"^[^\s<>@,;]{1,64}@[^\s<>@,;]{1,253}$")]


class Target(Section):
    """A receiver of alerts."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="by which people know it")
    kind: TargetKind
    url: str = Field(
        "", max_length=2000, description="empty: PagerDuty's own; mail: smtp://host:587, smtps://host:465"
    )
    username: str = Field("", max_length=200, description="mail: with whose name to log in; empty: without")
    sender: Address | None = Field(None, description="mail: from whom it comes")
    recipients: tuple[Address, ...] = Field((), max_length=50, description="mail: who gets it")
    events: tuple[Family, ...] = Field(
        ("incident", "decision", "action", "lockstep"), description="what is sent to it"
    )
    grades: tuple[Grade, ...] = Field(
        ("isolate", "alert"), description="incidents sent to it; critical ones come whatever their grade"
    )
    severities: tuple[Severity, ...] = Field(
        ("critical", "warning", "info"), description="incidents sent to it, by what they do to the job"
    )
    jobs: tuple[str, ...] = Field((), max_length=100, description="patterns such as llama-*; empty: all jobs")
    watchdog: bool = Field(
        False, description="Alertmanager: let LockstepWatchdog fire for ever, so its absence shows"
    )
    enabled: bool = True
    secret_files: tuple[Path, ...] = Field(
        (), max_length=5, description="files with a key for signatures, a routing key, a bearer token or a password"
    )
    secrets: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(
        (), max_length=5, repr=False, description="the same through the API; they never come back"
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        _check_url(self)
        if self.kind == "email" and not (self.sender and self.recipients):
            raise ValueError(f"mail of {self.name} needs a sender and recipients")
        if self.kind == "pagerduty" and len(self.secrets) + len(self.secret_files) != 1:
            raise ValueError(f"{self.name} needs exactly one secret: PagerDuty's routing key")
        if self.watchdog and self.kind != "alertmanager":
            raise ValueError(f"{self.name} is no Alertmanager, so nobody would miss its watchdog")
        if self.kind == "webhook":
            for secret in self.secrets:
                decode_key(secret)
        return self

    @property
    def address(self) -> str:
        """The URL that is really used."""
        return self.url or (PAGERDUTY_URL if self.kind == "pagerduty" else "")

    @property
    def shown_address(self) -> str:
        """The URL without what may be a secret: the path of a webhook often is one, and queries hold tokens."""
        parts = urlsplit(self.address)
        path = "/…" if self.kind in ("slack", "webhook") and parts.path.strip("/") else parts.path
        return f"{parts.scheme}://{parts.netloc}{path}{'?…' if parts.query else ''}"


class AlertSettings(Section):
    """Who is alerted when something happens; receivers made through the API come on top."""

    targets: tuple[Target, ...] = Field((), max_length=MOST_TARGETS, description="receivers: [[alerts.targets]]")
    allow: tuple[Allowed, ...] = Field(
        (), description="networks and names inside the site that receivers may have, such as 127.0.0.1/32"
    )
    link: str = Field("", description="address of the dashboard as people reach it; empty: http://<api.listen>")
    runbooks: str = Field(
        "",
        pattern=r"^(https?://[!-~]+)?$",
        description="address of docs/operations.md as people reach it; messages link the runbook of a class there",
    )
    ca_file: Path | None = Field(None, description="authorities that receivers' certificates may be signed by, too")
    timeout_s: float = Field(15.0, gt=0, le=60, description="for a whole delivery, name look-up apart")
    group_s: float = Field(30.0, ge=0, description="after a message, news of the same job is gathered for this long")
    settle_s: float = Field(60.0, ge=0, description="an incident must be closed for this long before it is resolved")
    resend_s: float = Field(60.0, gt=0, description="time between two reminders of what fires, to Alertmanager")
    keep_days: int = Field(14, ge=1, description="how long deliveries stay in the log")
    silent_s: float = Field(300.0, gt=0, description="without agents, windows or a service for this long: an alert")
    full_share: float = Field(0.9, gt=0, le=1, description="the store's disk being this full is an alert")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [target.name for target in self.targets]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are called {doubled[0]}")
        if open_ones := [target.name for target in self.targets if target.secrets]:
            raise ValueError(f"the secret of {open_ones[0]} belongs into a file: secret_files")
        return self


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


def _check_url(target: Target) -> None:
    """Raise ValueError, which does not show the URL, because it may be a secret."""
    parts = urlsplit(target.address)
    schemes = _SCHEMES.get(target.kind, _HTTP)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"{target.name} needs a url of {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if parts.username or parts.password:
        raise ValueError(f"the url of {target.name} holds a user or password; use secrets instead")
    if not target.address.isascii() or re.search(r"\s|[\x00-\x1f]", target.address) or parts.port == 0:
        raise ValueError(f"the url of {target.name} is not plain ASCII, or its port is 0")
