"""kill -9 of the one of two heads that sends webhooks: the other goes on, and no message is lost or changes its id.

The heads share PostgreSQL, a ClickHouse server and the key that seals receivers' secrets.
"""

import json
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import select

from lockstep.alerts import Target
from lockstep.clock import SystemClock
from lockstep.sealing import Keyring
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.deliveries import list_deliveries
from lockstep.state.incidents import save_incidents
from lockstep.state.tables import LEASES
from lockstep.state.targets import create_target
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from tests.api.alerts.receivers import Got, Receiver, answer, receiving
from tests.cli.commands import LOCKSTEP, environment_for
from tests.http_serving import Quiet
from tests.lockstep.state.build import incident
from tests.waiting import eventually

pytestmark = pytest.mark.slow

INCIDENTS = 8
# At which message, counted over both receivers, the sender is killed: before it hears an answer, or just after, when
# the outcome may or may not be written.
KILLS = {1: "before", 9: "after"}
_START_S = 120.0


class Heads:
    """Two `lockstep serve api`; the one that sends can be killed, and who is dead is started again."""

    def __init__(self, directory: Path, control: ControlDatabase, **settings: str) -> None:
        self._log = (directory / "heads.log").open("wb")
        self._control = control
        self._environments = [environment_for(directory / name, **settings) for name in ("a", "b")]
        self._one_at_a_time = threading.Lock()
        self.kills = 0
        self._processes = [self._start(environment) for environment in self._environments]

    def _start(self, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([LOCKSTEP, "serve", "api"], env=environment, stdout=self._log, stderr=self._log)

    def kill_sender(self) -> None:
        with self._one_at_a_time:
            eventually(lambda: self._sender() is not None)
            process = self._sender()
            assert process is not None
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.kills += 1

    def revive(self) -> None:
        """Start again who was killed, once the other has taken over; it may have been killed meanwhile, too."""
        with self._one_at_a_time:
            dead = [number for number, process in enumerate(self._processes) if process.poll() is not None]
            for number in dead if len(dead) == 2 or self._sender() else ():
                assert self._processes[number].returncode == -signal.SIGKILL, "it ended by itself; its log says why"
                self._processes[number] = self._start(self._environments[number])

    def _sender(self) -> "subprocess.Popen[bytes] | None":
        """Return the head that holds the lease, None while that is a dead one."""
        with self._control.read() as connection:
            holder = str(connection.scalar(select(LEASES.c.holder).where(LEASES.c.name == "alerts")))
        alive = [process for process in self._processes if process.poll() is None]
        return next((process for process in alive if f"/{process.pid}/" in holder), None)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def receivers() -> Iterator[dict[str, Receiver]]:
    with receiving() as first, receiving() as second:
        yield {"first": first, "second": second}


def test_no_message_is_lost_or_changes_its_id_when_the_head_that_sends_is_killed(
    tmp_path: Path, receivers: dict[str, Receiver], postgres_database: str, database_url: str
) -> None:
    with open_store(database_url) as store:
        migrate(store, Layout(store.database), now_ns=1)
    keys = Keyring(tmp_path / "shared.key", is_made=True)
    named = {name: {"name": name, "kind": "webhook", "url": each.url} for name, each in receivers.items()}
    names, now_ns = {f"i{number:02}" for number in range(INCIDENTS)}, SystemClock().now_ns()
    with open_control(postgres_database, keys=keys) as control:
        create_target(control, Target(**named["second"]), who="ada", why="", now_ns=1)
        heads = Heads(
            tmp_path,
            control,
            LOCKSTEP_STORE_URL=database_url,
            LOCKSTEP_CONTROL_URL=postgres_database,
            LOCKSTEP_CONTROL_KEY_FILE=str(keys.file),
            LOCKSTEP_API_LISTEN="127.0.0.1:0",
            LOCKSTEP_LEASE_S="1",
            LOCKSTEP_ALERTS_TARGETS=json.dumps([named["first"]]),
            LOCKSTEP_ALERTS_ALLOW='["127.0.0.1/32"]',
            LOCKSTEP_ALERTS_GROUP_S="0",
        )
        planned, numbers = dict(KILLS), count(1)

        def reply(handler: Quiet, got: Got) -> None:
            when = planned.pop(next(numbers), None)  # both receivers may be told at the same time
            if when == "before":
                heads.kill_sender()
            answer(200)(handler, got)
            handler.wfile.flush()
            if when == "after":
                heads.kill_sender()

        for receiver in receivers.values():
            receiver.reply = reply
        try:
            save_incidents(control, [incident(name, opened_ns=now_ns, updated_ns=now_ns) for name in names], None)

            def all_arrived() -> bool:
                heads.revive()
                arrived = [{str(got.document["subject"]) for got in each.got} for each in receivers.values()]
                return all(subjects == names for subjects in arrived)

            eventually(all_arrived, limit_s=_START_S * (1 + len(KILLS)))

            def all_written() -> bool:
                heads.revive()
                sent = [each for name in receivers for each in list_deliveries(control, name)]
                return len(sent) == 2 * INCIDENTS and {each.state for each in sent} == {"delivered"}

            eventually(all_written, limit_s=_START_S)
        finally:
            heads.close()
    assert (heads.kills, planned) == (len(KILLS), {})
    for receiver in receivers.values():
        ids = defaultdict(set)
        for got in receiver.got:
            ids[got.document["subject"]].add((got.headers["webhook-id"], got.document["id"], got.body))
        assert all(len(each) == 1 for each in ids.values()), "the same message at each try"
    repeated = sum(len(each.got) for each in receivers.values()) - 2 * INCIDENTS
    assert 1 <= repeated <= 2 * len(KILLS), "at least what was in flight came again, and nothing else"
