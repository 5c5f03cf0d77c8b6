"""Whose fabric it is follows from names and notes alone."""

import os
import subprocess
import sys

import pytest

from lockstep.fabrics import leaf_spine
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.ownership import Note, is_abandoned, owner_of, prefix_of, start_of

TOPOLOGY = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1)


def note(owner: int, owner_start: int, is_kept: bool = False) -> Note:
    return Note(
        owner=owner,
        owner_start=owner_start,
        is_kept=is_kept,
        subnet="198.18.0.0/24",
        topology=TOPOLOGY,
        options=ShapeOptions(),
    )


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("name", ["lk12-3", "lk12-3-h0", "lk12-3-br", "lk12-3.json", "lk12-3-pod0-leaf1"])
def test_names_of_ours_tell_their_fabric_and_its_owner(name: str) -> None:
    assert prefix_of(name) == "lk12-3"
    assert owner_of("lk12-3") == 12


@pytest.mark.parametrize("name", ["eth0", "lk", "lk12", "lk12-34-h0", "xlk12-3", "lk12-3x", "link12-3"])
def test_names_of_others_are_nobodys(name: str) -> None:
    assert prefix_of(name) is None


def test_a_fabric_is_abandoned_when_its_owner_is_dead_unless_it_is_kept(dead_pid: int) -> None:
    assert is_abandoned(f"lk{dead_pid}-0", None)
    assert is_abandoned(f"lk{dead_pid}-0", note(dead_pid, 1))
    assert not is_abandoned(f"lk{dead_pid}-0", note(dead_pid, 1, is_kept=True))


def test_a_living_owner_counts_only_while_it_is_the_same_process() -> None:
    me, start = os.getpid(), start_of(os.getpid())
    assert start is not None
    assert not is_abandoned(f"lk{me}-0", note(me, start))
    assert not is_abandoned(f"lk{me}-0", None)
    assert is_abandoned(f"lk{me}-0", note(me, start - 1))  # the number was given to another process
