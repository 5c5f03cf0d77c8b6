"""A host's check says what is well, what has to be mended, and what verdicts go without; it takes nothing away."""

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from collector.check import _LOST, Check, check_host
from collector.registry import SOURCES
from lockstep import __version__
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.sections import CollectorSettings
from tests.api.build import running_api
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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server": f"http://{NOBODY}"}, f"http://{NOBODY} does not answer"),
        ({"server": "head:8642"}, "head:8642 does not answer"),
        ({"server": f"http://{NOBODY}", "ca_file": "/no/such"}, "cannot read authorities from /no/such"),
        ({"server": f"http://{NOBODY}", "token_file": "/no/such"}, "cannot read the host's token from /no/such"),
    ],
)
def test_head_node_that_cannot_be_asked_is_one_sentence(
    tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    (failed,) = look(tmp_path, **settings)["head"]
    assert failed.state == "failed"
    assert sentence in failed.message


def test_collector_that_runs_is_asked_how_it_is(tmp_path: Path) -> None:
    def said(metrics: str) -> Check:
        with answering(metrics=metrics) as url:
            (found,) = look(tmp_path, server=url, listen=url.removeprefix("http://"))["collector"]
        return found

    assert said(METRICS) == Check("collector", "ok", "it runs and has sent 17 batches")
    assert said(METRICS.replace("away 0", "away 1")).message.startswith("it runs and its last batch did not get")
    assert "cannot read links" in said(METRICS.replace('"links"} 1', '"links"} 0')).message
    assert look(tmp_path, server=f"http://{NOBODY}")["collector"][0].state == "missing"


def test_ranks_that_record_are_counted_and_those_that_use_nccl_without_the_plugin_are_named(tmp_path: Path) -> None:
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


def test_ring_that_is_held_is_counted_by_its_job_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev/shm/lockstep").mkdir(parents=True)
    ring = forge(tmp_path / "dev/shm/lockstep/rank.ring")
    before = ring.read_bytes()
    monkeypatch.setattr("collector.nccl.ringfile.RingFile.owner", lambda _: 4711)  # it would take a process
    (found,) = look(tmp_path)["plugin"]
    assert found == Check("plugin", "ok", "job train: 1 ranks record, NCCL 2.28.9, plugin 0.1.0")
    assert ring.read_bytes() == before


def test_source_that_is_missing_says_what_verdicts_go_without(tmp_path: Path) -> None:
    assert {name for name, _ in SOURCES} - {"nccl_rings", "fabric"} == set(_LOST)
    (found,) = look(tmp_path, sources=("probes",))["probes"]
    assert found == Check("probes", "missing", f"collector.probes is off; without it: {_LOST['probes']}")
