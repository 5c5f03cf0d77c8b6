"""Receivers in the settings are checked before anything starts; complaints show no secrets."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.alerts import AlertSettings, Target
from lockstep.config import load_settings
from lockstep.errors import BadSettings

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_receivers_come_from_the_file_and_from_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_text(
        '[alerts]\nallow = ["127.0.0.1/32"]\n'
        '[[alerts.targets]]\nname = "am"\nkind = "alertmanager"\nurl = "http://127.0.0.1:9093"\nwatchdog = true\n'
        '[[alerts.targets]]\nname = "pager"\nkind = "pagerduty"\nsecret_files = ["/etc/lockstep/pager"]\n'
    )
    alerts = load_settings({}, file).alerts
    assert [(target.name, target.address) for target in alerts.targets] == [
        ("am", "http://127.0.0.1:9093"),
        ("pager", "https://events.pagerduty.com/v2/enqueue"),
    ]
    variable = '[{"name": "hook", "kind": "webhook", "url": "https://example.com/h"}]'
    (target,) = load_settings({"LOCKSTEP_ALERTS_TARGETS": variable}).alerts.targets
    assert (target.grades, target.events) == (("isolate", "alert"), ("incident", "decision", "action", "lockstep"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": "webhook"}, "needs a url of https:// or http://"),
        ({"kind": "webhook", "url": "ftp://x/y"}, "needs a url of https:// or http://"),
        ({"kind": "webhook", "url": "https://u:hunter2@x/y"}, "holds a user or password"),
        ({"kind": "webhook", "url": "https://x/y\nz"}, "is not plain ASCII"),
        ({"kind": "webhook", "url": "https://x/ü"}, "is not plain ASCII"),
        ({"kind": "webhook", "url": "https://x:99999/"}, "[Pp]ort"),
        ({"kind": "webhook", "url": "https://x/", "watchdog": True}, "is no Alertmanager"),
        ({"kind": "webhook", "url": "https://x/", "secrets": ["hunter2"]}, "a webhook's secret"),
        ({"kind": "slack", "url": ""}, "needs a url"),
        ({"kind": "pagerduty"}, "exactly one secret"),
        ({"kind": "pagerduty", "secrets": ["a", "b"]}, "exactly one secret"),
        ({"kind": "email", "url": "smtp://mail"}, "needs a sender and recipients"),
        ({"kind": "email", "url": "https://mail"}, "needs a url of smtp:// or smtps://"),
        ({"kind": "email", "url": "smtp://m", "sender": "a@b", "recipients": ["x\r\nBcc: y@z"]}, "pattern"),
        ({"kind": "carrier-pigeon", "url": "https://x/"}, "Input should be"),
        ({"kind": "webhook", "url": "https://x/", "name": "a/b"}, "pattern"),
    ],
)
def test_receiver_that_cannot_work_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint) as refused:
        Target.model_validate({"name": "ops", **fields})
    messages = " ".join(str(each["msg"]) for each in refused.value.errors())
    assert "hunter2" not in messages


def test_secret_in_the_open_and_two_of_one_name_are_refused() -> None:
    target = {"name": "ops", "kind": "webhook", "url": "https://x/"}
    with pytest.raises(ValidationError, match="two targets are called ops"):
        AlertSettings.model_validate({"targets": [target, target]})
    with pytest.raises(BadSettings, match="belongs into a file") as refused:
        load_settings(
            {"LOCKSTEP_ALERTS_TARGETS": f'[{{"name":"o","kind":"slack","url":"https://x","secrets":["{KEY}"]}}]'}
        )
    assert KEY not in str(refused.value)


def test_allow_list_takes_networks_and_names_only() -> None:
    for rule in ("10.0.0.0/99", "a b", "http://x", "", "10.1.2.3/8"):
        with pytest.raises(ValidationError, match="neither a network"):
            AlertSettings.model_validate({"allow": [rule]})
