"""What services open before they start is theirs alone, and a clash costs nothing."""

import socket
from pathlib import Path

import pytest

from api.web import listen_on
from lockstep.config import Settings
from lockstep.errors import LockstepError
from lockstep.sections import StoreSettings
from lockstep.state.leases import unique_holder
from lockstep.store.migrations import Layout, check_migrated
from lockstep.store.opening import layout_of, node_urls, opened_store, prepare_embedded
from tests.cli.commands import Run, check_failure


def test_address_that_is_free_is_listened_on() -> None:
    with listen_on("127.0.0.1", 0, "LOCKSTEP_API_LISTEN") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with socket.create_connection(listener.getsockname()):
            pass


def test_address_of_the_sixth_version_is_listened_on() -> None:
    with listen_on("::1", 0, "LOCKSTEP_API_LISTEN") as listener:
        assert listener.family == socket.AF_INET6


def test_address_in_use_is_named_with_the_setting_to_change() -> None:
    with listen_on("127.0.0.1", 0, "LOCKSTEP_API_LISTEN") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LockstepError) as caught:
            listen_on("127.0.0.1", port, "LOCKSTEP_API_LISTEN")
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; set LOCKSTEP_API_LISTEN to another"
    )


@pytest.mark.parametrize(
    ("command", "section"),
    [("up", "API"), ("serve api", "API"), ("serve analyzer", "ANALYZER"), ("serve planner", "PLANNER")],
)
def test_service_whose_port_is_taken_is_one_sentence(lockstep: Run, command: str, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = lockstep(*command.split(), **{f"LOCKSTEP_{section}_LISTEN": listen})
    check_failure(outcome, f"cannot listen on {listen}: Address already in use; set LOCKSTEP_{section}_LISTEN")


@pytest.mark.parametrize("command", ["up", "serve api"])
def test_clash_of_ports_leaves_no_trace(lockstep: Run, state: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lockstep(*command.split(), LOCKSTEP_API_LISTEN=f"127.0.0.1:{taken.getsockname()[1]}")
    assert not state.exists()


def test_every_process_has_a_name_of_its_own_in_leases() -> None:
    assert unique_holder() != unique_holder()


def test_layout_is_that_of_the_settings() -> None:
    store = StoreSettings(url="http://db/telemetry", cluster="main", replicated=True)
    assert layout_of(Settings(store=store)) == Layout("telemetry", "main", True)


def test_store_without_a_list_of_nodes_is_its_own_node() -> None:
    alone = Settings(store=StoreSettings(url="http://a/x"))
    cluster = Settings(store=StoreSettings(url="http://a/x", nodes=("http://a/x", "http://b/x")))
    assert node_urls(alone) == ("http://a/x",)
    assert node_urls(cluster) == ("http://a/x", "http://b/x")


def test_embedded_store_is_brought_up_to_date_when_a_service_opens_it(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with opened_store(settings) as store:
        prepare_embedded(store, settings, now_ns=1)
        check_migrated(store, layout_of(settings))
