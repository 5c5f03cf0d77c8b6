"""Every source is registered under its own name and can be made for any host."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from collector.kernel.process import RingHolders, read_stat
from collector.registry import SOURCES, make_sources
from lockstep.errors import BadInput
from lockstep.sections import CollectorSettings
from tests.builders import SECOND, T0
from tests.waiting import eventually

SETTINGS = CollectorSettings()


def test_sources_have_the_names_they_are_registered_under() -> None:
    names = [name for name, _ in SOURCES]
    assert [make("h0", SETTINGS).name for _, make in SOURCES] == names
    assert len(set(names)) == len(names)
    assert "links" in names


def test_sources_say_how_often_to_read_them() -> None:
    assert [name for name, make in SOURCES if make("h0", SETTINGS).period_s <= 0] == []


def test_settings_may_choose_among_the_sources() -> None:
    chosen = CollectorSettings(sources=("rdma", "links"))
    assert {source.name for source in make_sources("h0", chosen)} == {"links", "rdma"}
    assert len(make_sources("h0", SETTINGS)) == len(SOURCES)


def test_source_that_does_not_exist_is_refused_with_the_names_that_do() -> None:
    with pytest.raises(BadInput, match=r"there is no source lynx; there are .*links, rdma"):
        make_sources("h0", CollectorSettings(sources=("lynx",)))


@pytest.mark.parametrize(("place", "kinds"), [("", ["process_stopped"]), ("elsewhere", [])])
def test_processes_are_watched_that_record_where_the_settings_say(
    live_rings: Path, place: str, kinds: list[str]
) -> None:
    (pid,) = RingHolders(Path("/"), [live_rings])()
    settings = CollectorSettings(sources=("processes",), ring_dirs=(live_rings / place,))
    with contextlib.closing(make_sources("h0", settings)[0]) as source:
        source.read(T0, ())
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: read_stat(Path("/proc"), pid).state == "T")
        reported = source.read(T0 + SECOND, ()).tables
        os.kill(pid, signal.SIGCONT)
    assert [row["kind"] for table in reported.values() for row in table.to_pylist()] == kinds
