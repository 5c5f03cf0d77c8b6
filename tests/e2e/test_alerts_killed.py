"""kill -9 while webhooks are in flight: each is delivered at least once, always with the same id, none is lost."""

import json
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path

import pytest

from lockstep.clock import SystemClock
from lockstep.state.database import open_control
from lockstep.state.deliveries import list_deliveries
from lockstep.state.incidents import save_incidents
from tests.api.alerts.receivers import Got, Receiver, answer, receiving
from tests.cli.commands import LOCKSTEP, environment_for
from tests.lockstep.state.build import incident
from tests.waiting import eventually

pytestmark = pytest.mark.slow

INCIDENTS = 14
# At which message, counted over both receivers, the sender is killed: before it hears an answer, or just after, when
# the outcome may or may not be written.
KILLS = {1: "before", 6: "after", 11: "before", 19: "after"}
_START_S = 120.0


class Sender:
    """A `lockstep serve api` process that is started again whenever it was killed."""

    def __init__(self, state: Path, receivers: dict[str, Receiver]) -> None:
        targets = [{"name": name, "kind": "webhook", "url": each.url} for name, each in receivers.items()]
        self._log = (state / "sender.log").open("wb")
        self._environment = environment_for(
            state,
            LOCKSTEP_API_LISTEN="127.0.0.1:0",
            LOCKSTEP_LEASE_S="1",
            LOCKSTEP_ALERTS_TARGETS=json.dumps(targets),
            LOCKSTEP_ALERTS_ALLOW='["127.0.0.1/32"]',
            LOCKSTEP_ALERTS_GROUP_S="0",
        )
        self.kills = 0
        self.start()

    def start(self) -> None:
        command = [LOCKSTEP, "serve", "api"]
        self._process = subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        process = self._process  # as soon as it is dead another one takes its place
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills += 1

    def revive(self) -> None:
        if self._process.poll() is not None:
            assert self._process.returncode == -signal.SIGKILL, "it ended by itself; its log says why"
            self.start()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture
def receivers() -> Iterator[dict[str, Receiver]]:
    with receiving() as first, receiving() as second:
        yield {"first": first, "second": second}


def test_no_message_is_lost_or_changes_its_id_however_often_the_sender_is_killed(
    tmp_path: Path, receivers: dict[str, Receiver]
) -> None:
    sender = Sender(tmp_path, receivers)
    planned, numbers = dict(KILLS), count(1)

    def reply(handler: BaseHTTPRequestHandler, got: Got) -> None:
        when = planned.pop(next(numbers), None)  # both receivers may be told at the same time
        if when == "before":
            sender.kill()
        answer(200)(handler, got)
        handler.wfile.flush()
        if when == "after":
            sender.kill()

    for receiver in receivers.values():
        receiver.reply = reply
    names = {f"i{number:02}" for number in range(INCIDENTS)}
    now_ns = SystemClock().now_ns()
    try:
        with open_control(f"sqlite:///{tmp_path / 'control.db'}") as control:
            save_incidents(control, [incident(name, opened_ns=now_ns, updated_ns=now_ns) for name in names], None)

            def all_arrived() -> bool:
                sender.revive()
                arrived = [{str(got.document["subject"]) for got in each.got} for each in receivers.values()]
                return all(subjects == names for subjects in arrived)

            eventually(all_arrived, limit_s=_START_S * (1 + len(KILLS)))

            def all_written() -> bool:
                sender.revive()
                sent = [each for name in receivers for each in list_deliveries(control, name)]
                return len(sent) == 2 * INCIDENTS and {each.state for each in sent} == {"delivered"}

            eventually(all_written, limit_s=_START_S)
    finally:
        sender.close()
    assert (sender.kills, planned) == (len(KILLS), {})
    for receiver in receivers.values():
        ids = defaultdict(set)
        for got in receiver.got:
            ids[got.document["subject"]].add((got.headers["webhook-id"], got.document["id"], got.body))
        assert all(len(each) == 1 for each in ids.values()), "the same message at each try"
    repeated = sum(len(each.got) for each in receivers.values()) - 2 * INCIDENTS
    assert 1 <= repeated <= 2 * len(KILLS), "at least what was in flight came again, and nothing else"
