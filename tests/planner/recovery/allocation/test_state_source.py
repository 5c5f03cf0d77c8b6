"""State comes from the nearest complete copy, and each copy says how long it takes."""

import pytest

from lockstep.errors import NotPresent
from planner.recovery.allocation.state_source import Source, find_nearest, rank_sources

PEER = Source("peer", "h2", bytes_per_s=25e9, setup_s=4.0)
MEMORY = Source("host_memory", "h5", bytes_per_s=20e9, setup_s=4.0, age_s=60.0)
REMOTE = Source("remote", "/ckpt/step100", bytes_per_s=1e9, setup_s=10.0, age_s=900.0)


def test_a_live_replica_comes_first_then_memory_then_remote_storage() -> None:
    ranked = rank_sources([REMOTE, MEMORY, PEER], bytes_per_node=50e9)
    assert [one.source.kind for one in ranked] == ["peer", "host_memory", "remote"]
    assert [one.total_s for one in ranked] == pytest.approx([6.0, 66.5, 960.0])
    assert ranked[0].reason == "peer h2: 6 s to load, 0 s of work done again"


def test_of_equal_copies_the_nearest_is_taken() -> None:
    same = [Source("remote", "s", 1e9), Source("host_memory", "m", 1e9), Source("peer", "p", 1e9)]
    assert find_nearest(same, 1e9).source.name == "p"


def test_an_old_copy_close_by_loses_against_a_new_one_far_away() -> None:
    stale = Source("host_memory", "h5", bytes_per_s=20e9, age_s=5_000.0)
    assert find_nearest([stale, REMOTE], 50e9).source is REMOTE


def test_an_incomplete_copy_is_never_taken() -> None:
    torn = Source("peer", "h2", bytes_per_s=25e9, is_complete=False)
    assert find_nearest([torn, REMOTE], 50e9).source is REMOTE
    with pytest.raises(NotPresent, match="none of 1 copies of the state is complete"):
        find_nearest([torn], 50e9)
