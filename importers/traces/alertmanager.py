"""Notifications of Prometheus Alertmanager (webhook, version 4): alerts that fire and that are resolved, as events.

The host is that of the first of these labels, in any spelling: hostname, node, nodename, host, instance without port.
An alert that names none concerns more than one host: its row is Alertmanager's own. A firing alert happened when it
began (`startsAt`), a resolved one when it ended (`endsAt`).

The same alert comes again when Alertmanager retries, repeats, sends its group again for a newcomer, or runs as a
pair. It is the same alert by its fingerprint, and the same news by its status and time: of an alert, only news later
than what was heard last is new. A firing that arrives after its own resolution is old by then.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from importers.traces.readings import (
    MOST_MESSAGE_CHARS,
    TIMELESS,
    Loose,
    Reading,
    Row,
    Statement,
    Text,
    parse_json,
    parse_timestamp,
    validated,
    without_repeats,
)

SOURCE = "alertmanager"
OWN_LABEL = "lockstep"  # alerts of ours carry it: what we said ourselves is no evidence when it comes back
MOST_ALERTS = 5_000  # of one notification; Alertmanager's max_alerts cuts before
_LONGEST_NAME = 253
_HOST_LABELS = ("hostname", "node", "nodename", "host", "instance")
_SEVERITIES = {
    "critical": "critical",
    "page": "critical",
    "error": "error",
    "high": "error",
    "warning": "warning",
    "warn": "warning",
    "info": "info",
    "none": "info",
}


class Alert(Loose):
    """One alert of a notification."""

    status: Literal["firing", "resolved"]
    labels: dict[Text, Text]
    annotations: dict[Text, Text] = Field({})
    starts_at: str = Field(alias="startsAt", max_length=40)
    ends_at: str = Field("", alias="endsAt", max_length=40)
    fingerprint: Text = Field("", max_length=100)

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "alert")

    @property
    def identity(self) -> str:
        """What is equal for all news of this alert; old releases do not tell it, but it is made of the labels."""
        whole = json.dumps(sorted(self.labels.items()))
        return self.fingerprint or hashlib.sha256(whole.encode()).hexdigest()[:16]

    @property
    def ts_ns(self) -> int | None:
        return parse_timestamp(self.starts_at if self.status == "firing" else self.ends_at)


class Notification(Loose):
    """What Alertmanager posts: a group of alerts."""

    version: Literal["4"]
    alerts: tuple[Alert, ...] = Field(max_length=MOST_ALERTS)


@dataclass(frozen=True)
class Saved:
    """A file with one notification, or with one in each line."""

    file: str
    data: bytes


def parse_alertmanager(files: Sequence[Saved]) -> Reading:
    """Return the events of saved notifications, each news of an alert once."""
    given = [check_notification(location, data) for saved in files for location, data in _documents(saved)]
    timeless = sum(alert.ts_ns is None for notification in given for alert in notification.alerts)
    statements = (statement for notification in given for statement in statements_of(notification))
    return without_repeats(statements, {TIMELESS: timeless})


def check_notification(location: str, data: bytes) -> Notification:
    """Return what was posted, or raise BadInput with the place of the first thing that is wrong."""
    return validated(Notification, parse_json(location, data), location)


def statements_of(notification: Notification) -> Iterator[Statement]:
    """Yield a statement for every alert that says when it happened and is not our own."""
    for alert in notification.alerts:
        ts_ns = alert.ts_ns
        if ts_ns is None or OWN_LABEL in alert.labels:
            continue
        host = host_of(alert.labels)
        number = 2 * ts_ns + (alert.status == "resolved")  # an alert that ends as it begins ends later
        yield Statement(host, f"{host}/{alert.identity}", number, ts_ns, (_row(alert, host, ts_ns),))


def host_of(labels: Mapping[str, str]) -> str:
    """Return the host that labels name, or Alertmanager itself.

    >>> host_of({"instance": "h3:9100"}), host_of({"Hostname": "h4", "instance": "10.0.0.1:9400"}), host_of({})
    ('h3', 'h4', 'alertmanager')
    """
    spelled = {name.lower(): value for name, value in labels.items() if value}
    for label in _HOST_LABELS:
        host = _without_port(spelled[label]) if label == "instance" and label in spelled else spelled.get(label)
        if host and len(host) <= _LONGEST_NAME:
            return host
    return SOURCE


def _without_port(instance: str) -> str | None:
    """Return the host of an instance, which Prometheus writes as host:port and probes write as a URL."""
    try:
        return urlsplit(instance if "//" in instance else f"//{instance}").hostname
    except ValueError:
        return None


def _row(alert: Alert, host: str, ts_ns: int) -> Row:
    given = alert.annotations.get("summary") or alert.annotations.get("description") or ""
    labels = " ".join(f"{name}={value}" for name, value in sorted(alert.labels.items()) if name != "alertname")
    message = f"{alert.name} is {alert.status}{': ' if given else ''}{given} ({labels})"[:MOST_MESSAGE_CHARS]
    is_firing = alert.status == "firing"
    severity = _SEVERITIES.get(alert.labels.get("severity", "").lower(), "warning") if is_firing else "info"
    row: Row = {"host": host, "ts_ns": ts_ns, "source": SOURCE, "kind": "alert" if is_firing else "alert_resolved"}
    return row | {"component": _component(alert.labels, host), "severity": severity, "message": message}


def _component(labels: Mapping[str, str], host: str) -> str:
    """Return the part that labels name, as verdicts call it; empty where they name none."""
    if labels.get("switch"):
        return f"switch:{labels['switch'][:_LONGEST_NAME]}"
    if host == SOURCE:
        return ""
    gpu = labels.get("gpu", "")
    return f"gpu:{host}/{gpu}" if gpu.isdecimal() and len(gpu) < 4 else f"host:{host}"


def _documents(saved: Saved) -> Iterator[tuple[str, bytes]]:
    """Yield the notifications of a file with their place; one that spans lines is the only one of its file."""
    lines = [(number, line) for number, line in enumerate(saved.data.splitlines(), 1) if line.strip()]
    if len(lines) < 2 or not lines[0][1].rstrip().endswith(b"}"):
        yield saved.file, saved.data
        return
    yield from ((f"{saved.file}, line {number}", line) for number, line in lines)
