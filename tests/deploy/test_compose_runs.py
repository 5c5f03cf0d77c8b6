"""What docker-compose.yml, the units and the DaemonSet describe does start, work and stop: with real commands.

Docker, systemd and the kubelet are not needed: their part, the order and the environment, is done by hand.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx
import pytest

from collector.shipping import Batch, GatewayClient
from lockstep.batches import encode_batch
from lockstep.records import Agent, NicCounter
from lockstep.state.tokens import TOKEN
from lockstep.store.store import open_store
from tests.builders import make, rows
from tests.collector.fake_gateway import FakeGateway
from tests.deploy.chart import Pod, make_pod
from tests.deploy.compose_file import load_compose, served
from tests.deploy.local_compose import READ_ONLY_ROOT, LocalCompose
from tests.deploy.processes import LOCKSTEP, Running
from tests.deploy.unit_file import LocalUnits, read_unit
from tests.http_serving import is_up
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.slow

COMPOSE = load_compose()
HOST = "gpu-017"
STOPPED = [("planner", 0), ("analyzer", 0), ("api", 0)]  # in the order they are told to, with their exit codes


@pytest.fixture
def local(tmp_path: Path, secrets: Path) -> Iterator[LocalCompose]:
    with served(COMPOSE, tmp_path / "clickhouse", secrets) as clickhouse:
        local = LocalCompose(COMPOSE, tmp_path, secrets, clickhouse)
        yield local
        local.kill_all()


@pytest.fixture
def units(tmp_path: Path) -> Iterator[LocalUnits]:
    units = LocalUnits(tmp_path)
    yield units
    units.kill_all()


def start_all(local: LocalCompose) -> list[Running]:
    serving = []
    for service in COMPOSE.start_order():
        if service.is_ours:
            running = local.start(service.name)
            if service.command[0] == "serve":
                running.wait_until(partial(local.is_healthy, service.name))
                serving.append(running)
            else:
                assert running.wait(LIMIT_S) == 0, running.output
    return serving


def make_token(local: LocalCompose) -> str:
    made = local.run("api", "token", "create", HOST, "--scope", "ingest", "--host", HOST)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def ask(server: ClickHouseServer, user: str, password: Path, sql: str) -> str:
    """Return the server's answer, or its refusal, to a query by one of the users in deploy/clickhouse."""
    headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password.read_text()}
    try:
        with urlopen(Request(f"http://127.0.0.1:{server.http_port}/", sql.encode(), headers)) as answer:
            return str(answer.read().decode())
    except HTTPError as refusal:
        with refusal:
            return str(refusal.read().decode())


@pytest.mark.needs_root
def test_the_whole_file_starts_takes_a_batch_and_stops_read_only(local: LocalCompose, secrets: Path) -> None:
    local.read_only = True
    serving = start_all(local)
    client = GatewayClient(local.published("api"), make_token(local), agent=HOST)
    now_ns = time.time_ns()  # the store forgets what is older than its retention
    counters = make(NicCounter, host=HOST, nic="mlx5_3", ts_ns=now_ns)
    heartbeat = make(Agent, host=HOST, version="0.0.9", ts_ns=now_ns)
    told = encode_batch({"nic_counters": rows(counters), "agents": rows(heartbeat)})
    receipt = client.send(Batch("test", 1, told, rows=2))
    client.close()
    assert receipt.watermark == 1
    grafana = partial(ask, local.clickhouse, "grafana", secrets / "grafana-store-password")
    sent = "SELECT host, nic, version FROM lockstep.nic_counters JOIN lockstep.agents USING (host)"
    eventually(lambda: grafana(sent) == f"{HOST}\tmlx5_3\t0.0.9\n")
    check_reads_telemetry_and_nothing_more(grafana)
    assert [running.name for running in serving] == ["api", "analyzer", "planner"]
    assert [(running.name, running.stop()) for running in reversed(serving)] == STOPPED


def check_reads_telemetry_and_nothing_more(as_grafana: Callable[[str], str]) -> None:
    assert as_grafana("SELECT count() FROM lockstep.events") == "0\n"
    assert as_grafana("SELECT 1 SETTINGS max_execution_time = 20") == "1\n"
    assert "SETTING_CONSTRAINT_VIOLATION" in as_grafana("SELECT 1 SETTINGS max_execution_time = 600")
    assert "READONLY" in as_grafana("SELECT 1 SETTINGS max_memory_usage = 0")
    assert "ACCESS_DENIED" in as_grafana("INSERT INTO lockstep.events (host) VALUES ('x')")
    assert "ACCESS_DENIED" in as_grafana("DROP TABLE lockstep.events")
    assert "ACCESS_DENIED" in as_grafana("SELECT * FROM system.users")
    assert "ACCESS_DENIED" in as_grafana("SELECT * FROM file('/etc/passwd', LineAsString)")


def test_without_migration_the_api_says_so_and_a_password_is_never_told(local: LocalCompose, secrets: Path) -> None:
    api = local.start("api")
    assert api.wait(LIMIT_S) == 1
    lacks = r"lockstep: the store lacks 0001_job_tables, .*: run `lockstep store migrate` first\n"
    assert re.fullmatch(lacks, api.output)
    (secrets / "store-password").unlink()
    (secrets / "store-password").write_text("guessed")
    migrate = local.start("migrate")
    assert migrate.wait(LIMIT_S) == 1
    assert "refuses" in migrate.output
    assert "guessed" not in migrate.output


def test_the_services_user_backs_up_and_restores_but_owns_nothing_else(local: LocalCompose, secrets: Path) -> None:
    def as_lockstep(sql: str) -> str:
        return ask(local.clickhouse, "lockstep", secrets / "store-password", sql)

    assert local.start("migrate").wait(LIMIT_S) == 0
    as_lockstep(f"INSERT INTO lockstep.events (host, ts_ns) VALUES ('before', {time.time_ns()})")
    backup = local.run("migrate", "store", "backup", "monday")
    as_lockstep("DROP DATABASE lockstep SYNC")
    restore = local.run("migrate", "store", "restore", "monday")
    assert (backup.returncode, restore.returncode) == (0, 0), backup.stderr + restore.stderr
    assert (local.clickhouse.data / "backups/monday").is_dir()
    assert as_lockstep("SELECT host FROM lockstep.events") == "before\n"
    assert "ACCESS_DENIED" in as_lockstep("CREATE DATABASE other")
    assert "ACCESS_DENIED" in as_lockstep("CREATE USER other")
    assert "ACCESS_DENIED" in as_lockstep("SELECT * FROM system.users")


def test_the_units_start_and_the_collectors_heartbeat_is_stored(units: LocalUnits) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    name = socket.gethostname().split(".", 1)[0]
    listening = {"LOCKSTEP_API_LISTEN": url.removeprefix("http://"), "LOCKSTEP_API_OPEN_METRICS": "true"}
    head = read_unit("lockstep.service"), listening
    collector = read_unit("lockstep-collector.service"), {"LOCKSTEP_COLLECTOR_SERVER": url}
    up = units.start(*head)
    up.wait_until(lambda: is_up(f"{url}/readyz"))
    made = units.run(*head, "token", "create", name, "--scope", "ingest", "--host", name)
    assert TOKEN.fullmatch(made.stdout.strip()), made.stderr
    units.load_credential(collector[0], made.stdout)
    collect = units.start(*collector)
    collect.wait_until(lambda: 'batches_total{result="accepted"}' in page(f"{url}/metrics"))
    assert collect.stop() == 0, collect.output
    assert up.stop() == 0, up.output
    with open_store(f"chdb://{units.environment(*head)['LOCKSTEP_STATE_DIR']}/store") as store:
        assert store.query("SELECT DISTINCT host FROM agents")["host"].to_pylist() == [name]


def page(url: str) -> str:
    return httpx.get(url, trust_env=False).text


POD_TOKEN = "lks_0123456789abcdef_" + "t" * 43


def live_once(pod: Pod, directory: Path, gateway: FakeGateway) -> None:
    """Start the container, which can write nowhere but in its spool, until it has sent something, and stop it."""
    state, token = directory / "state", directory / "token"
    state.mkdir(exist_ok=True)
    token.write_text(POD_TOKEN)
    environment = pod.environment | {"LOCKSTEP_STATE_DIR": str(state), "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(token)}
    inside = ["sh", "-c", READ_ONLY_ROOT, "sh", str(state), "--", LOCKSTEP, *pod.container["args"]]
    probe, before = pod.probe_url("livenessProbe"), len(gateway.received)

    def is_at_work() -> bool:
        return len(gateway.received) > before and is_up(probe) and "lockstep_collector_away 0" in page(probe)

    collector = Running("collector", ["unshare", "--mount", *inside], environment, directory)
    try:
        collector.wait_until(is_at_work)
        assert collector.stop() == 0, collector.output
    finally:
        collector.kill()


@pytest.mark.needs_root
def test_pod_starts_answers_sends_and_goes_on_after_its_renewal(tmp_path: Path) -> None:
    node = {"spec.nodeName": "gpu-017", "status.hostIP": "127.0.0.1"}
    with FakeGateway() as gateway:
        pod = make_pod({"server": gateway.url, "port": free_port()}, node)
        for _ in range(2):
            live_once(pod, tmp_path, gateway)
    assert list((tmp_path / "state/spool").glob("*.batch")) == [], "all was sent"
    assert {(batch.agent, batch.token) for batch in gateway.received} == {("gpu-017", f"Bearer {POD_TOKEN}")}
    assert len({batch.boot for batch in gateway.received}) == 2
