"""A real Alertmanager takes our alerts: they fire, are grouped, change, are silenced there, resolve, come back."""

from pathlib import Path
from typing import Any

import pytest

from importers.traces.alertmanager import check_notification, statements_of
from lockstep.state.targets import list_health
from tests.api.alerts.build import Alerts, after, alerting, fault, target
from tests.api.alerts.real_alertmanager import Alertmanager, alertmanager
from tests.api.alerts.receivers import Receiver, receiving
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def firing(manager: Alertmanager) -> list[tuple[str, str]]:
    """Return subject and state of what fires, but for the watchdog."""
    found = [alert for alert in manager.alerts() if alert["labels"]["lockstep"] != "watchdog"]
    return [(alert["labels"]["subject"], alert["status"]["state"]) for alert in found]


def notified(hook: Receiver, status: str) -> list[list[str]]:
    told: list[dict[str, Any]] = [got.document for got in hook.got]
    return [
        sorted(alert["labels"].get("subject", "") for alert in document["alerts"])
        for document in told
        if document["status"] == status and document["groupLabels"].get("job")
    ]


def test_alerts_fire_in_groups_change_are_told_again_silenced_and_resolved(tmp_path: Path) -> None:
    with receiving() as hook, alertmanager(tmp_path, hook.url) as manager:
        receiver = target("am", "alertmanager", url=manager.url, watchdog=True)
        with alerting(tmp_path, receiver, settle_s=0, group_s=0) as alerts:
            check_story(alerts, manager, hook)
    for got in hook.got:  # our own alerts are no evidence when they come back
        assert list(statements_of(check_notification("what Alertmanager posted", got.body))) == []


def check_story(alerts: Alerts, manager: Alertmanager, hook: Receiver) -> None:
    manager.silence("component", "nic:h9/eth1")
    alerts.happen(fault("i1", grade="alert"), fault("i2", component="gpu:h4/0"), fault("i3", component="nic:h9/eth1"))
    alerts.round()
    alerts.round(1)
    assert firing(manager) == [("i1", "active"), ("i2", "active"), ("i3", "suppressed")]
    assert list_health(alerts.control)["am"].failures_in_row == 0
    eventually(lambda: ["i1", "i2"] in notified(hook, "firing"))
    first = {alert["labels"]["alertname"]: alert["updatedAt"] for alert in manager.alerts()}
    assert set(first) == {"LockstepIncident", "LockstepWatchdog"}
    alerts.round(61)
    again = {alert["labels"]["alertname"]: alert["updatedAt"] for alert in manager.alerts()}
    assert all(again[name] > first[name] for name in first), "what fires is told again, and the watchdog always"
    alerts.happen(fault("i1", grade="isolate"))
    alerts.round(1)
    eventually(lambda: len(firing(manager)) == 3)  # with another grade it is one alert with other labels
    (alert,) = [each for each in manager.alerts() if each["labels"].get("subject") == "i1"]
    assert (alert["labels"]["severity"], alert["labels"]["grade"]) == ("warning", "isolate")
    alerts.happen(*(fault(name, state="closed", closed_ns=after(1)) for name in ("i1", "i2", "i3")))
    alerts.round(1)
    eventually(lambda: firing(manager) == [])
    eventually(lambda: notified(hook, "resolved"))
    assert not [subjects for subjects in notified(hook, "firing") if "i3" in subjects], "a silence there holds"
