"""A host joins and leaves; its check says what has to be mended and what verdicts go without, and takes nothing."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from collector.host import _LOST, SETTINGS, TOKEN, UNIT, UNIT_FILE, Check, check_host, join, leave, run_tool
from collector.registry import SOURCES
from lockstep import __version__
from lockstep.client.server import Server
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import BadInput, NotPresent, ServerRefused
from lockstep.sections import CollectorSettings
from lockstep.state.documents import list_audit
from lockstep.state.tokens import create_token, find_token, list_tokens, revoke_token
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.builders import T0
from tests.collector.nccl.forging import forge
from tests.http_serving import Quiet, serving

NOBODY = "127.0.0.1:1"
METRICS = """
lockstep_collector_away 0
lockstep_collector_sent_batches_total 17
lockstep_collector_source_success{source="links"} 1
"""


@contextmanager
def answering(version: str = __version__, behind_s: float = 0, metrics: str = "") -> Iterator[str]:
    """Give the address of a head node, which also serves the metrics of a collector."""
    answers = {"/version": f'{{"version": "{version}"}}', "/metrics": metrics}

    class Handler(Quiet, BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(T0 / NS_PER_S - behind_s, usegmt=True)

        def do_GET(self) -> None:
            self.reply(200, answers[self.path].encode())

        def do_POST(self) -> None:
            self.reply(401, b'{"detail": "no such token"}')

    with serving(Handler) as url:
        yield url


def look(root: Path, **settings: object) -> dict[str, list[Check]]:
    """Return what a check of h1 says, by name; of sources the kernel's clock alone, which every host has."""
    asked = CollectorSettings.model_validate({"listen": NOBODY, "sources": ("clocks",)} | settings)
    (root / "proc").mkdir(exist_ok=True)
    found: dict[str, list[Check]] = {}
    for each in check_host("h1", asked, ManualClock(T0), root):
        found.setdefault(each.name, []).append(each)
    return found


def test_head_node_says_its_version_its_time_and_whether_it_takes_this_host(tmp_path: Path) -> None:
    with answering() as url:
        found = look(tmp_path, server=url)
        assert [found[name][0].state for name in ("head", "time", "token")] == ["ok", "ok", "failed"]
    with answering(version="0.0.1", behind_s=300) as url:
        found = look(tmp_path, server=url)
    assert found["head"][0].state == "missing"
    assert f"Lockstep 0.0.1, here {__version__}" in found["head"][0].message
    assert found["time"] == [Check("time", "failed", "the clocks of this host and the head node are 300 s apart")]
    assert "takes nothing from here: no such token; `lockstep token create h1 " in found["token"][0].message


def test_token_is_that_of_this_host_and_may_send(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:

        def said(secret: str) -> Check:
            (tmp_path / "token").write_text(secret)
            (found,) = look(tmp_path, server=str(api.client.base_url), token_file=tmp_path / "token")["token"]
            return found

        assert said(api.make_token("ingest", "h1")) == Check("token", "ok", "the head node takes what h1 sends")
        assert "this token is for h2" in said(api.make_token("ingest", "h2")).message
        assert said(api.make_token("read")).state == "failed"
        assert said("").state == "failed"


def test_head_node_that_cannot_be_asked_and_a_source_that_is_missing_are_one_sentence(tmp_path: Path) -> None:
    nobody = {"server": f"http://{NOBODY}"}
    for settings, sentence in (
        (nobody, f"http://{NOBODY} does not answer"),
        ({"server": "head:8642"}, "head:8642 does not answer"),
        (nobody | {"ca_file": "/no/such"}, "cannot read authorities from /no/such"),
        (nobody | {"token_file": "/no/such"}, "cannot read the host's token from /no/such"),
    ):
        (failed,) = look(tmp_path, **settings)["head"]
        assert failed.state == "failed"
        assert sentence in failed.message
    assert {name for name, _ in SOURCES} - {"nccl_rings", "fabric"} == set(_LOST)
    (found,) = look(tmp_path, sources=("probes",))["probes"]
    assert found == Check("probes", "missing", f"collector.probes is off; without it: {_LOST['probes']}")


def test_collector_that_runs_is_asked_how_it_is(tmp_path: Path) -> None:
    def said(metrics: str) -> Check:
        with answering(metrics=metrics) as url:
            (found,) = look(tmp_path, server=url, listen=url.removeprefix("http://"))["collector"]
        return found

    assert said(METRICS) == Check("collector", "ok", "it runs and has sent 17 batches")
    assert said(METRICS.replace("away 0", "away 1")).message.startswith("it runs and its last batch did not get")
    assert "cannot read links" in said(METRICS.replace('"links"} 1', '"links"} 0')).message
    assert look(tmp_path, server=f"http://{NOBODY}")["collector"][0].state == "missing"


def test_ranks_that_record_are_counted_and_left_as_they_are_and_those_without_the_plugin_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = tmp_path / "dev/shm/lockstep"
    rings.mkdir(parents=True)
    assert "no process of this host uses NCCL now" in look(tmp_path)["plugin"][0].message
    (rings / "torn.ring").write_bytes(b"torn")
    for pid, mapped in ((7, "/x/libnccl.so.2"), (8, "/x/libnccl.so.2\n/y/liblockstep-nccl.so"), (9, "/x/libc.so.6")):
        (tmp_path / f"proc/{pid}").mkdir()
        (tmp_path / f"proc/{pid}/maps").write_text(mapped)
    torn, bare = look(tmp_path)["plugin"]
    assert (torn.state, bare.state) == ("failed", "failed")
    assert torn.message.startswith("1 ring files cannot be read: ")
    assert bare.message.startswith("1 processes use NCCL and record nothing: pid 7: ")
    (rings / "torn.ring").unlink()
    ring = forge(rings / "rank.ring")
    before = ring.read_bytes()
    monkeypatch.setattr("collector.nccl.ringfile.RingFile.owner", lambda _: 4711)  # it would take a process
    assert look(tmp_path)["plugin"][0] == Check(
        "plugin", "ok", "job train: 1 ranks record, NCCL 2.28.9, plugin 0.1.0"
    )
    assert ring.read_bytes() == before


# --- a host joins with a token of many, reports with one of its own, and leaves nothing behind when it leaves ---


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


def test_host_joins_once_reports_and_leaves_whatever_umask_root_has(api: Api, head: Server, root: Path) -> None:
    with pytest.raises(NotPresent, match=r"this host has not joined: there is no .*collector.token"):
        list(leave(root))
    commands: list[list[str]] = []
    before = os.umask(0o077)
    try:
        steps = list(join(head, "gpu-07", None, root, commands.append))
    finally:
        os.umask(before)
    assert [stat.S_IMODE((root / path).stat().st_mode) for path in (SETTINGS, TOKEN)] == [0o644, 0o600]
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
    with pytest.raises(BadInput, match=r"has a token already, .*: `lockstep host leave` gives it back"):
        list(join(head, "gpu-07", None, root, lambda _: None))
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
    (root / SETTINGS).write_text("# emptied\n")
    with pytest.raises(BadInput, match="does not say LOCKSTEP_COLLECTOR_SERVER"):
        list(leave(root, lambda _: None))
    assert (root / TOKEN).exists(), "kept where nobody can be told of the leave"


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


def test_without_systemd_files_are_written_and_nothing_is_started_and_a_tool_that_fails_says_why(
    head: Server, tmp_path: Path
) -> None:
    ca_file = tmp_path / "ca.pem"
    steps = list(join(head, "gpu-07", ca_file, tmp_path / "bare", lambda _: pytest.fail("nothing to run")))
    assert steps[-1].startswith("no systemd here")
    assert f"LOCKSTEP_COLLECTOR_CA_FILE={ca_file}\n" in (tmp_path / "bare" / SETTINGS).read_text()
    run_tool(["true"])
    with pytest.raises(BadInput, match=r"^false: ended with 1$"):
        run_tool(["false"])
