"""The whole way in as real processes, killed before any step or at any time: nothing lost, nothing doubled."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from collector.shipping import Batch, GatewayClient
from lockstep.batches import encode_batch
from lockstep.errors import DestinationAway, ServerRefused
from lockstep.records import Agent, Collective
from lockstep.state.database import open_control
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from tests.api.ingest import crash_child
from tests.builders import T0, make, rows
from tests.http_serving import is_up
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import LOCKSTEP, free_port, wait_until
from tests.testbed.tcp_proxy import TcpProxy
from tests.waiting import LIMIT_S

HOSTS = ("h0", "h1", "h2", "h3")
ROWS = 200
KILLS = 3  # tests/e2e/test_chaos.py kills gateways, stores and all others together, a thousand times in the long tier


@dataclass
class ApiProcess:
    environment: dict[str, str]
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def control_url(self) -> str:
        return self.environment["LOCKSTEP_CONTROL_URL"]

    def start(self) -> None:
        self.process = subprocess.Popen([LOCKSTEP, "serve", "api"], env=self.environment, stderr=subprocess.DEVNULL)
        wait_until(lambda: is_up(f"http://127.0.0.1:{self.port}/healthz"), "the api answers")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(LIMIT_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouseServer]:
    with ClickHouseServer(tmp_path / "clickhouse") as running:
        with open_store(running.url) as store:
            migrate(store, Layout(store.database), now_ns=1)
        yield running


@contextmanager
def running(state: Path, server: ClickHouseServer, control: str) -> Iterator[ApiProcess]:
    port = free_port()
    places = {"STATE_DIR": str(state), "STORE_URL": server.url, "CONTROL_URL": control}
    settings = places | {"API_LISTEN": f"127.0.0.1:{port}", "LOG_LEVEL": "error"}
    process = ApiProcess(os.environ | {f"LOCKSTEP_{name}": value for name, value in settings.items()}, port)
    process.start()
    try:
        yield process
    finally:
        process.kill()


class Goal:
    """How many batches each host sends: as many as any has begun when all has happened that is to."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._begun = 0
        self._lock = threading.Lock()

    def begin(self, number: int) -> bool:
        """Return whether the batch of this number is one of them."""
        with self._lock:
            self._begun = max(self._begun, number if self._last is None else 0)
            return self._last is None or number <= self._last

    def settle(self) -> int:
        """Return how many it is, from now on for everybody."""
        with self._lock:
            self._last = self._begun
            return self._last


class Sender(threading.Thread):
    """A collector reduced to its promise: numbered batches, one at a time, each repeated until acknowledged.

    Of several gateways each try goes to the next, as a load balancer may have it.
    """

    def __init__(self, host: str, token: str, ports: Sequence[int], goal: Goal) -> None:
        super().__init__(daemon=True)  # where the test fails, there is nobody left who would acknowledge
        self._host, self._goal = host, goal
        self._clients = [GatewayClient(f"http://127.0.0.1:{port}", token, agent=host) for port in ports]
        self.repeated = 0

    def run(self) -> None:
        for number in count(1):
            if not self._goal.begin(number):
                break
            body = encode_batch({"collectives": self._rows(number), "agents": rows(make(Agent, host=self._host))})
            while not self._send(number, body):
                self.repeated += 1
                threading.Event().wait(0.02)
            threading.Event().wait(0.05)  # who sends without an end must not fill the store
        for client in self._clients:
            client.close()

    def _send(self, number: int, body: bytes) -> bool:
        client = self._clients[(number + self.repeated) % len(self._clients)]
        try:
            return client.send(Batch("only", number, body, ROWS)).watermark >= number
        except (DestinationAway, ServerRefused):
            return False

    def _rows(self, number: int) -> pa.Table:
        told = {"host": self._host, "seq": number, "enqueue_ns": T0 + number}
        return rows(*(make(Collective, rank=rank, **told) for rank in range(ROWS)))


@contextmanager
def senders(control_url: str, ports: Sequence[int], goal: Goal) -> Iterator[list[Sender]]:
    """Let every host send for the length of the block, and then until the goal is reached."""
    with open_control(control_url) as control:
        tokens = {h: create_token(control, scope="ingest", host=h, name="t", now_ns=1) for h in HOSTS}
    threads = [Sender(host, tokens[host], ports, goal) for host in HOSTS]
    for thread in threads:
        thread.start()
    yield threads
    goal.settle()
    for thread in threads:
        thread.join()


def check_exactly_once(server: ClickHouseServer, batches: int) -> None:
    """Every batch of every host is there once, in the raw table, in the roll-up, and in the heartbeats."""
    with open_store(server.url) as store:

        def is_drained() -> bool:  # an insert is seen in its table before it is in the roll-up
            wanted = (
                ("uniqExact(host, seq)", "collectives", 1),
                ("sum(n)", "operations", ROWS),
                ("count()", "agents", 1),
            )
            return all(
                store.query(f"SELECT {what} AS n FROM {table}")["n"][0].as_py() >= batches * len(HOSTS) * each
                for what, table, each in wanted
            )

        wait_until(is_drained, "all batches are in the store")
        odd = store.query(f"SELECT host, seq, count() AS n FROM collectives GROUP BY host, seq HAVING n != {ROWS}")
        assert odd.to_pylist() == []
        rolled = store.query(f"SELECT seq, sum(n) AS n FROM operations GROUP BY seq HAVING n != {ROWS * len(HOSTS)}")
        assert rolled.to_pylist() == []
        beats = store.query("SELECT host, count() AS n FROM agents GROUP BY host ORDER BY host")
        assert beats.to_pylist() == [{"host": host, "n": batches} for host in HOSTS]


@pytest.mark.slow
def test_batches_sent_again_to_another_gateway_after_lost_replies_and_kills_are_stored_once(
    server: ClickHouseServer, postgres_database: str, tmp_path: Path
) -> None:
    dice, goal = random.Random(4711), Goal()
    with ExitStack() as stack:
        heads = [stack.enter_context(running(tmp_path / name, server, postgres_database)) for name in ("a", "b")]
        proxies = [stack.enter_context(TcpProxy(head.port)) for head in heads]
        with senders(postgres_database, [proxy.port for proxy in proxies], goal) as threads:
            for turn in range(KILLS):
                threading.Event().wait(dice.uniform(0.1, 1.0))
                head, proxy = heads[turn % 2], proxies[turn % 2]
                proxy.behaviour = "lose_replies"  # what is on this one's disk now is sent to the other as well
                threading.Event().wait(dice.uniform(0.1, 1.0))
                head.kill()
                proxy.behaviour = "forward"
                head.start()
        assert sum(proxy.lost_replies for proxy in proxies) > 0
        assert sum(thread.repeated for thread in threads) > 0
        check_exactly_once(server, goal.settle())


REPO = Path(__file__).parents[3]


@pytest.mark.slow
def test_wherever_a_gateway_dies_the_next_has_every_batch_once(clickhouse: ClickHouseServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.api.ingest.crash_child", clickhouse.url_for("crash"), str(tmp_path)]
    told = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=600, check=True).stdout
    lives = [tuple(map(int, line.split())) for line in told.splitlines()]
    assert len(lives) > 15, "there are more points than that at which a gateway can die"
    assert [died for _, _, died, _ in lives] == [-9] * (len(lives) - 1) + [0]
    assert all(prepared == finished == 0 for _, prepared, _, finished in lives)
    assert {point: wrong for point, *_ in lives if (wrong := miscounted(clickhouse.url_for(f"crash_{point}")))} == {}


def miscounted(url: str) -> list[object]:
    with open_store(url) as store:
        raw = store.query("SELECT seq, count() AS n FROM collectives GROUP BY seq ORDER BY seq").to_pylist()
        rolled = store.query("SELECT seq, sum(n) AS n FROM operations GROUP BY seq ORDER BY seq").to_pylist()
        beats = store.query("SELECT count() AS n FROM agents")["n"].to_pylist()
    wanted = [{"seq": number, "n": crash_child.ROWS} for number in range(1, crash_child.BATCHES + 1)]
    expected = ((raw, wanted), (rolled, wanted), (beats, [crash_child.BATCHES]))
    return [found for found, right in expected if found != right]
