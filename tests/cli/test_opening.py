"""What services open before they start is theirs alone, and a clash costs nothing."""

import getpass
import os
import socket
from pathlib import Path

import pytest

from api.web import listen_on
from cli.setup import who_asks
from lockstep.config import Settings
from lockstep.errors import LockstepError
from lockstep.sections import StoreSettings
from lockstep.state.leases import unique_holder
from lockstep.store.migrations import Layout, check_migrated
from lockstep.store.opening import layout_of, node_urls, opened_store, prepare_embedded
from tests.cli.commands import Run, check_failure


def test_address_that_is_free_is_listened_on_and_one_in_use_named_with_the_setting_to_change() -> None:
    with listen_on("::1", 0, "LOCKSTEP_API_LISTEN") as sixth:
        assert sixth.family == socket.AF_INET6
    with listen_on("127.0.0.1", 0, "LOCKSTEP_API_LISTEN") as taken:
        port = taken.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(LockstepError) as caught:
            listen_on("127.0.0.1", port, "LOCKSTEP_API_LISTEN")
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


def test_store_and_its_nodes_are_those_of_the_settings() -> None:
    assert unique_holder() != unique_holder()
    store = StoreSettings(url="http://db/telemetry", cluster="main", replicated=True)
    assert layout_of(Settings(store=store)) == Layout("telemetry", "main", True)
    alone = Settings(store=StoreSettings(url="http://a/x"))
    cluster = Settings(store=StoreSettings(url="http://a/x", nodes=("http://a/x", "http://b/x")))
    assert node_urls(alone) == ("http://a/x",)
    assert node_urls(cluster) == ("http://a/x", "http://b/x")


def test_embedded_store_is_brought_up_to_date_when_a_service_opens_it(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with opened_store(settings) as store:
        prepare_embedded(store, settings, now_ns=1)
        check_migrated(store, layout_of(settings))


def test_bad_settings_stop_the_command_with_all_complaints(lockstep: Run) -> None:
    outcome = lockstep("token", "list", LOCKSTEP_NO_SUCH="1", LOCKSTEP_API_LISTEN="nowhere", LOCKSTEP_LEASE_S="-1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines() == [
        "lockstep: these settings cannot be used:",
        "  - LOCKSTEP_NO_SUCH: there is no such setting",
        "  - lease_s: input should be greater than 0",
        "  - api.listen: value error, 'nowhere' is not host:port",
    ]


def test_settings_file_of_the_option_wins_and_one_that_is_not_there_is_named(lockstep: Run, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.toml"
    chosen.write_text("colour = 1\n")
    outcome = lockstep("--config", chosen, "token", "list", LOCKSTEP_CONFIG=str(tmp_path / "absent.toml"))
    assert outcome.code == 1
    assert "colour: there is no such setting" in outcome.err
    assert "absent" not in outcome.err
    outcome = lockstep("--config", tmp_path / "absent.toml", "token", "list")
    assert outcome.code == 1
    assert f"{tmp_path}/absent.toml" in outcome.err


def test_state_directory_that_cannot_be_made_is_named(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = lockstep("token", "create", "x", LOCKSTEP_STATE_DIR=str(tmp_path / "file" / "below"))
    check_failure(outcome, f"cannot make the state directory {tmp_path}/file/below (Not a directory)")
    assert "set LOCKSTEP_STATE_DIR" in outcome.err


def test_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    assert who_asks() == f"uid {os.getuid()}"
