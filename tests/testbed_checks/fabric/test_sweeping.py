"""Nothing is left behind: not after the end, not after a kill in the middle, and nobody else's fabric is touched."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.fabric import ownership
from tests.testbed.fabric.building import build_fabric, open_fabric
from tests.testbed.fabric.sweeping import sweep
from tests.testbed_checks.fabric.remains import find_remains, is_running
from tests.testbed_checks.fabric.talking import can_talk
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.needs_root
REPO = Path(__file__).resolve().parents[3]
TOPOLOGY = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1, options=FabricOptions(gpus_per_host=1))
BUILDER = """
import os, sys, time
from tests.testbed.fabric import building
from tests.testbed_checks.fabric.test_sweeping import TOPOLOGY

fatal = int(sys.argv[2])
calls = 0
def die(*_, real=getattr(building, sys.argv[1]), **named):
    global calls
    calls += 1
    if calls == fatal:
        print(f"lk{os.getpid()}-0", 0, flush=True)
        time.sleep(600)
    return real(*_, **named)

setattr(building, sys.argv[1], die)
fabric = building.build_fabric(TOPOLOGY)
process = fabric.run_in("h1", ["sleep", "600"])
from tests.testbed.faults.processes import starve
starve(fabric, "h0", [], 0.1)
print(fabric.prefix, process.pid, flush=True)
time.sleep(600)
"""


def build_and_kill(function: str = "sweep", call: int = 99) -> tuple[str, int]:
    """Kill a builder when it has built, or at a certain call of a function; return its fabric and its process."""
    command = [sys.executable, "-c", BUILDER, function, str(call)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO) as builder:
        assert builder.stdout is not None
        words = builder.stdout.readline().split()
        builder.send_signal(signal.SIGKILL)
        builder.wait(LIMIT_S)
    return words[0], int(words[1])


def test_after_its_end_nothing_of_a_fabric_is_left() -> None:
    with build_fabric(TOPOLOGY) as fabric:
        process = fabric.run_in("h0", ["sleep", "600"])
        assert len(find_remains(fabric.prefix)) == 5 + 3 + 1  # namespaces, a bridge with two ports, a note
    assert find_remains(fabric.prefix) == []
    assert process.returncode == -signal.SIGKILL


def test_what_a_killed_builder_left_is_swept_with_its_processes() -> None:
    prefix, pid = build_and_kill()
    assert is_running(pid)
    assert len(find_remains(prefix)) == 5 + 3 + 1 + 1  # and a control group
    assert prefix in sweep()
    assert find_remains(prefix) == []
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize(("function", "call"), [("Home", 1), ("Home", 4), ("build_management", 1), ("_lay", 3)])
def test_what_a_builder_left_that_was_killed_while_building_is_swept(function: str, call: int) -> None:
    prefix, _ = build_and_kill(function, call)
    assert bool(find_remains(prefix)) == (call > 1 or function != "Home")
    sweep()
    assert find_remains(prefix) == []


def test_the_next_build_sweeps_by_itself() -> None:
    prefix, _ = build_and_kill()
    with build_fabric(TOPOLOGY):
        assert find_remains(prefix) == []


def test_fabrics_of_the_living_and_kept_ones_are_left_alone() -> None:
    with build_fabric(TOPOLOGY) as mine, build_fabric(TOPOLOGY, is_kept=True) as kept:
        note = ownership.read_note(kept.prefix)
        assert note is not None
        ownership.write_note(kept.prefix, note.model_copy(update={"owner_start": 1}))  # as if its builder had ended
        assert not {mine.prefix, kept.prefix} & set(sweep())
        assert can_talk(mine, ("h0", "eth0"), ("h1", "eth0"))
        assert can_talk(kept, ("h0", "eth0"), ("h1", "eth0"))


def test_a_fabric_that_another_opened_works_there_and_can_be_taken_down_from_there() -> None:
    with build_fabric(TOPOLOGY) as built:
        opened = open_fabric(built.prefix)
        assert opened.topology == built.topology
        assert can_talk(opened, ("h0", "eth0"), ("h1", "eth0"))
        opened.destroy()
        assert find_remains(built.prefix) == []
