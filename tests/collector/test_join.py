"""A host joins with a token of many, reports with one of its own, and leaves nothing behind when it leaves."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.join import SETTINGS, TOKEN, UNIT, UNIT_FILE, join, leave, run_tool
from lockstep.client.server import Server
from lockstep.errors import BadInput, NotPresent, ServerRefused
from lockstep.state.documents import list_audit
from lockstep.state.tokens import create_token, find_token, list_tokens, revoke_token
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.builders import T0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore()) as running:
        yield running


@pytest.fixture
def head(api: Api) -> Iterator[Server]:
    secret = create_token(api.parts.control, scope="join", host="gpu-[01-16]", name="rack 7", now_ns=T0)
    with Server(str(api.client.base_url), secret) as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host on which systemd is the first process."""
    (tmp_path / "host/run/systemd/system").mkdir(parents=True)
    return tmp_path / "host"


def test_host_joins_reports_and_leaves(api: Api, head: Server, root: Path) -> None:
    commands: list[list[str]] = []
    steps = list(join(head, "gpu-07", None, root, commands.append))
    assert [step.partition(";")[0].partition(" in ")[0] for step in steps] == [
        f"{head.url} knows gpu-07 now",
        "settings are",
        f"{UNIT} runs, and will after each boot",
    ]
    assert [command[0] for command in commands] == ["systemd-sysusers", "systemd-tmpfiles", "systemctl", "systemctl"]
    assert commands[-1] == ["systemctl", "enable", "--now", UNIT]
    secret = (root / TOKEN).read_text().strip()
    token = find_token(api.parts.control, secret)
    assert token is not None
    assert (token.scope, token.host, token.name) == ("ingest", "gpu-07", "gpu-07, by rack 7")
    assert stat.S_IMODE((root / TOKEN).stat().st_mode) == 0o600
    settings = f"LOCKSTEP_COLLECTOR_SERVER={head.url}\nLOCKSTEP_COLLECTOR_HOST=gpu-07\n"
    assert (root / SETTINGS).read_text() == settings
    assert "ExecStart=/opt/lockstep/bin/lockstep collect" in (root / UNIT_FILE).read_text()
    assert "u lockstep-collector" in (root / "usr/lib/sysusers.d/lockstep.conf").read_text()
    assert "d /run/lockstep/rings" in (root / "usr/lib/tmpfiles.d/lockstep.conf").read_text()

    commands.clear()
    assert list(leave(root, commands.append))[1] == "its token is worth nothing from now on"
    assert commands == [["systemctl", "disable", "--now", UNIT]]
    assert find_token(api.parts.control, secret) is None
    assert [path for path in (TOKEN, SETTINGS, UNIT_FILE) if (root / path).exists()] == []
    assert [(line.who, line.why) for line in list_audit(api.parts.control, 2)] == [
        ("gpu-07, by rack 7", "left"),
        ("rack 7", "joined"),
    ]
    list(join(head, "gpu-07", None, root, commands.append))  # and may come again


def test_join_token_speaks_for_no_host_that_has_joined_nor_for_one_outside_its_list(
    api: Api, head: Server, root: Path, tmp_path: Path
) -> None:
    list(join(head, "gpu-07", None, root, lambda _: None))
    with pytest.raises(ServerRefused, match=r"gpu-07 has a token already: `lockstep token revoke [0-9a-f]{16}`"):
        list(join(head, "gpu-07", None, tmp_path / "thief", lambda _: None))
    with pytest.raises(ServerRefused, match=r"is for gpu-\[01-16\], not for gpu-17"):
        list(join(head, "gpu-17", None, tmp_path / "thief", lambda _: None))
    for name in ("intake:gpud", "a b", "../x", ""):
        with pytest.raises(ServerRefused, match=r"body\.host"):
            head.send("POST", "/api/v1/hosts/join", {"host": name})
    assert not (tmp_path / "thief" / TOKEN).exists()
    (mine,) = [token for token in list_tokens(api.parts.control) if token.scope == "join"]
    revoke_token(api.parts.control, mine.id, T0)
    with pytest.raises(ServerRefused, match="unknown or revoked"):
        list(join(head, "gpu-08", None, tmp_path / "thief", lambda _: None))


def test_host_that_has_joined_asks_for_no_second_token_and_one_that_has_not_cannot_leave(
    head: Server, root: Path
) -> None:
    with pytest.raises(NotPresent, match=r"this host has not joined: there is no .*collector.token"):
        list(leave(root))
    list(join(head, "gpu-07", None, root, lambda _: None))
    with pytest.raises(BadInput, match=r"has a token already, .*: `lockstep host leave` gives it back"):
        list(join(head, "gpu-07", None, root, lambda _: None))


def test_without_systemd_files_are_written_and_nothing_is_started(head: Server, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    steps = list(join(head, "gpu-07", ca_file, tmp_path / "bare", lambda _: pytest.fail("nothing to run")))
    assert steps[-1].startswith("no systemd here")
    assert f"LOCKSTEP_COLLECTOR_CA_FILE={ca_file}\n" in (tmp_path / "bare" / SETTINGS).read_text()


def test_token_is_kept_where_nobody_can_be_told_of_the_leave(head: Server, root: Path) -> None:
    list(join(head, "gpu-07", None, root, lambda _: None))
    (root / SETTINGS).write_text("# emptied\n")
    with pytest.raises(BadInput, match="does not say LOCKSTEP_COLLECTOR_SERVER"):
        list(leave(root, lambda _: None))
    assert (root / TOKEN).exists()


def test_tool_that_fails_says_why() -> None:
    run_tool(["true"])
    with pytest.raises(BadInput, match=r"^false: ended with 1$"):
        run_tool(["false"])
