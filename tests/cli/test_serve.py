"""A service runs as a process of its own, answers probes, and leaves without a trace of failure.

What it opens before it starts is its own alone, and a clash costs nothing.
"""

import getpass
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import select

from api.web import listen_on
from cli.setup import who_asks
from lockstep.config import Settings
from lockstep.errors import LockstepError
from lockstep.sections import StoreSettings
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.leases import Shard, unique_holder
from lockstep.state.tables import LEASES
from lockstep.store.maintenance import layout_of, node_urls, opened_store, prepare_embedded
from lockstep.store.migrations import Layout, check_migrated
from tests.cli.commands import LOCKSTEP, Run, check_failure, environment_for
from tests.http_serving import is_up
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, eventually


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_paths_need_a_topology_and_analyzers_that_share_jobs_a_server(lockstep: Run) -> None:
    outcome = lockstep("serve", "planner", LOCKSTEP_PLANNER_PATHS="true")
    check_failure(outcome, "planner.paths needs to know the fabric: set analyzer.topology, or ")
    outcome = lockstep("serve", "analyzer", LOCKSTEP_ANALYZER_PROCESSES="2", LOCKSTEP_ANALYZER_LISTEN=free_address())
    check_failure(outcome, "analyzer.processes above 1 needs a ClickHouse server")


def holder_of(control: ControlDatabase, shard: Shard) -> int:
    with control.read() as connection:
        holder = connection.execute(select(LEASES.c.holder).where(LEASES.c.name == shard.name)).scalar()
    return int(holder.split("/")[1]) if holder else 0


@pytest.mark.slow
def test_analyzers_that_share_jobs_come_back_and_leave_with_the_first(tmp_path: Path, database_url: str) -> None:
    address, shards = free_address(), Shard.all_of(3)
    environment = environment_for(
        tmp_path,
        LOCKSTEP_STORE_URL=database_url,
        LOCKSTEP_ANALYZER_LISTEN=address,
        LOCKSTEP_ANALYZER_PROCESSES="3",
        LOCKSTEP_LEASE_S="2",
    )
    subprocess.run([LOCKSTEP, "store", "migrate"], env=environment, check=True, capture_output=True)
    with (
        subprocess.Popen([LOCKSTEP, "serve", "analyzer"], env=environment, stderr=subprocess.DEVNULL) as process,
        open_control(f"sqlite:///{tmp_path}/control.db") as control,
    ):
        eventually(lambda: is_up(f"http://{address}/readyz"))
        first = [holder_of(control, shard) for shard in shards]
        assert first[0] == process.pid
        assert len(set(first)) == 3
        os.kill(first[1], signal.SIGKILL)
        eventually(lambda: holder_of(control, shards[1]) not in (0, *first))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert [holder_of(control, shard) for shard in shards] == [0, 0, 0], "all have let go"


def test_address_that_is_free_is_listened_on_and_one_in_use_named_with_the_setting_to_change() -> None:
    with listen_on("[::1]:0", "LOCKSTEP_API_LISTEN") as sixth:
        assert sixth.family == socket.AF_INET6
    with listen_on("127.0.0.1:0", "LOCKSTEP_API_LISTEN") as taken:
        port = taken.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(LockstepError) as caught:
            listen_on(f"127.0.0.1:{port}", "LOCKSTEP_API_LISTEN")
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; set LOCKSTEP_API_LISTEN to another"
    )


@pytest.mark.parametrize(
    ("command", "section"),
    [("up", "API"), ("serve api", "API"), ("serve analyzer", "ANALYZER"), ("serve planner", "PLANNER")],
)
def test_service_whose_port_is_taken_is_one_sentence(lockstep: Run, state: Path, command: str, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = lockstep(*command.split(), **{f"LOCKSTEP_{section}_LISTEN": listen})
    check_failure(outcome, f"cannot listen on {listen}: Address already in use; set LOCKSTEP_{section}_LISTEN")
    assert section != "API" or not state.exists(), "a clash leaves no trace"


def test_store_is_that_of_the_settings_and_an_embedded_one_is_brought_up_to_date(tmp_path: Path) -> None:
    assert unique_holder() != unique_holder()
    store = StoreSettings(url="http://db/telemetry", cluster="main", replicated=True)
    assert layout_of(Settings(store=store)) == Layout("telemetry", "main", True)
    alone = Settings(store=StoreSettings(url="http://a/x"))
    cluster = Settings(store=StoreSettings(url="http://a/x", nodes=("http://a/x", "http://b/x")))
    assert node_urls(alone) == ("http://a/x",)
    several = Settings(store=StoreSettings(url="http://u@a:1,b/x"))
    assert node_urls(cluster) == ("http://a/x", "http://b/x")
    assert node_urls(several) == ("http://u@a:1/x", "http://u@b/x")
    settings = Settings(state_dir=tmp_path)
    with opened_store(settings) as opened:
        prepare_embedded(opened, settings.store, now_ns=1)
        check_migrated(opened, layout_of(settings))


def test_bad_settings_stop_the_command_with_all_complaints_and_name_their_file(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("token", "list", LOCKSTEP_NO_SUCH="1", LOCKSTEP_API_LISTEN="nowhere", LOCKSTEP_LEASE_S="-1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines() == [
        "lockstep: these settings cannot be used:",
        "  - LOCKSTEP_NO_SUCH: there is no such setting",
        "  - lease_s: input should be greater than 0",
        "  - api.listen: value error, 'nowhere' is not host:port",
    ]
    chosen = tmp_path / "chosen.toml"
    chosen.write_text("colour = 1\n")
    outcome = lockstep("--config", chosen, "token", "list", LOCKSTEP_CONFIG=str(tmp_path / "absent.toml"))
    assert outcome.code == 1
    assert "colour: there is no such setting" in outcome.err
    assert "absent" not in outcome.err
    outcome = lockstep("--config", tmp_path / "absent.toml", "token", "list")
    assert outcome.code == 1
    assert f"{tmp_path}/absent.toml" in outcome.err
    (tmp_path / "file").write_text("")
    outcome = lockstep("token", "create", "x", LOCKSTEP_STATE_DIR=str(tmp_path / "file" / "below"))
    check_failure(outcome, f"cannot make the state directory {tmp_path}/file/below (Not a directory)")
    assert "set LOCKSTEP_STATE_DIR" in outcome.err


def test_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    assert who_asks() == f"uid {os.getuid()}"
