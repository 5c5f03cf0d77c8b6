"""A fabric that one process brings up is there for others until one takes it down."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import NotPresent
from tests.testbed import commands
from tests.testbed.fabric.building import open_fabric
from tests.testbed_checks.fabric.remains import find_remains
from tests.testbed_checks.fabric.talking import can_talk

REPO = Path(__file__).resolve().parents[2]
UP = """
from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.commands import bring_up

for line in bring_up(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2, options=FabricOptions(gbps=100))):
    print(line)
"""


def bring_up_elsewhere() -> tuple[str, list[str]]:
    """Bring a fabric up in a process that ends; return its name and what was said about it."""
    done = subprocess.run([sys.executable, "-c", UP], capture_output=True, text=True, cwd=REPO, check=True)
    lines = done.stdout.splitlines()
    return lines[0].partition(":")[0], lines


@pytest.mark.needs_root
def test_a_fabric_is_up_until_it_is_taken_down() -> None:
    prefix, lines = bring_up_elsewhere()
    assert lines[0] == f"{prefix}: 2 hosts, 4 switches, 6 links"
    assert "  h1: eth0 10.2.0.2" in lines
    assert "links carry 750 Mbit/s" in lines
    assert prefix in commands.list_kept()
    fabric = open_fabric(prefix)
    assert can_talk(fabric, ("h0", "eth0"), ("h1", "eth0"))
    fabric.leave()
    assert prefix in commands.take_down(prefix)
    assert find_remains(prefix) == []


@pytest.mark.needs_root
def test_taking_down_what_is_not_up_names_what_is() -> None:
    prefix, _ = bring_up_elsewhere()
    with pytest.raises(NotPresent, match=f"there is no fabric lk1-0; there are: .*{prefix}"):
        commands.take_down("lk1-0")
    commands.take_down(prefix)


def test_without_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotPresent, match="the testbed needs root"):
        commands.take_down()
