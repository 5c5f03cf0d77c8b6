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


def test_sources_are_made_under_their_names_and_settings_may_choose_among_them() -> None:
    names = [name for name, _ in SOURCES]
    made = make_sources("h0", CollectorSettings())
    assert [source.name for source in made] == names
    assert len(set(names)) == len(names)
    assert all(source.period_s > 0 for source in made)
    chosen = CollectorSettings(sources=("rdma", "links"))
    assert {source.name for source in make_sources("h0", chosen)} == {"links", "rdma"}
    with pytest.raises(BadInput, match=r"there is no source lynx; there are .*links, rdma"):
        make_sources("h0", CollectorSettings(sources=("lynx",)))


def test_processes_are_watched_that_record_where_the_settings_say(live_rings: Path) -> None:
    (pid,) = RingHolders(Path("/"), [live_rings])()
    elsewhere, there = (
        make_sources("h0", CollectorSettings(sources=("processes",), ring_dirs=(folder,)))[0]
        for folder in (live_rings / "elsewhere", live_rings)
    )
    with contextlib.closing(elsewhere), contextlib.closing(there):
        for source in (elsewhere, there):
            source.read(T0, ())
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: read_stat(Path("/proc"), pid).state == "T")
        assert elsewhere.read(T0 + SECOND, ()).tables == {}
        reported = there.read(T0 + SECOND, ()).tables
        os.kill(pid, signal.SIGCONT)
    assert [row["kind"] for table in reported.values() for row in table.to_pylist()] == ["process_stopped"]
