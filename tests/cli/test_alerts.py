"""Receivers and their notifications from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.alerts import AlertSettings
from lockstep.config import Settings
from lockstep.state.deliveries import Outgoing, list_deliveries, save_round
from lockstep.state.documents import list_audit
from lockstep.state.targets import Health, list_health, write_health
from tests.api.alerts.build import make_notification, target
from tests.api.alerts.receivers import Receiver, answer, receiving
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.cli.commands import Run, check_failure


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def api(tmp_path: Path, receiver: Receiver) -> Iterator[Api]:
    hook = target("ops", url=receiver.url, secrets=())
    alerts = AlertSettings(targets=(hook,), allow=("127.0.0.1",))
    with running_api(tmp_path, FakeStore(), settings=Settings(alerts=alerts)) as running:
        lease = running.lease("alerts")
        waiting = Outgoing("ops", make_notification(), replaces=False, is_end=False)
        save_round(running.parts.control, lease, [waiting], [])
        with running.parts.control.begin() as connection:
            write_health(connection, "ops", Health(since_ns=1, failures_in_row=2, disabled_because="HTTP 410: gone"))
        yield running


@pytest.fixture
def to(api: Api) -> tuple[str, ...]:
    return ("--server", str(api.client.base_url), "--token", api.make_token("admin"))


def test_receivers_and_messages_are_listed_and_replayed(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    listed = lockstep("alerts", "list", *to)
    assert listed.code == 0
    assert "disabled" in listed.out
    assert "HTTP 410: gone" in listed.out
    assert json.loads(lockstep("alerts", "list", "--json", *to).out)["items"][0]["name"] == "ops"
    assert lockstep("alerts", "enable", "ops", "--why", "it is back", *to).code == 0
    assert list_health(api.parts.control)["ops"].disabled_because is None
    assert list_audit(api.parts.control, 1)[0].why == "it is back"
    listed = lockstep("alerts", "deliveries", "ops", "--state", "waiting", *to)
    assert make_notification().id in listed.out
    assert json.loads(lockstep("alerts", "deliveries", "ops", "--json", *to).out)["items"][0]["state"] == "waiting"
    assert lockstep("alerts", "replay", "ops", make_notification().id, "--why", "they lost it", *to).code == 0
    assert list_audit(api.parts.control, 1)[0].why == "they lost it"
    assert [each.state for each in list_deliveries(api.parts.control, "ops")] == ["waiting"]
    check_failure(lockstep("alerts", "test", "nobody", *to), "there is no target 'nobody'")


def test_test_message_tells_by_its_exit_code(lockstep: Run, receiver: Receiver, to: tuple[str, ...]) -> None:
    well = lockstep("alerts", "test", "ops", *to)
    assert (well.code, well.out) == (0, "ops: delivered: HTTP 200\n")
    receiver.reply = answer(500)
    ill = lockstep("alerts", "test", "ops", *to)
    assert (ill.code, ill.out) == (1, "ops: not delivered: HTTP 500\n")
