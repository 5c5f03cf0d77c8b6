"""The collector's capabilities are what its sources need of a real kernel: enough of them, and none too many."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import pytest

from tests.collector.fake_gateway import FakeGateway
from tests.conftest import REPO
from tests.deploy.bounded import QUESTIONS
from tests.deploy.processes import LOCKSTEP, Running
from tests.deploy.unit_file import read_unit
from tests.testbed.services import free_port

pytestmark = pytest.mark.needs_root

Ask = Callable[[str, Set[str], Path], str]

NEEDED: dict[str, Set[str]] = {
    "find_rank": {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"},
    "know_rank": {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"},
    "enter_container": {"CAP_SYS_PTRACE"},
    "read_ring": {"CAP_DAC_READ_SEARCH"},
    "ask_for_detail": {"CAP_DAC_OVERRIDE"},
    "take_away": {"CAP_FOWNER"},
    "hear_exits": {"CAP_NET_ADMIN"},
    "read_kernel_log": {"CAP_SYSLOG"},
    "send_probe": {"CAP_NET_RAW"},
}
# The rank: another user's process, which holds its ring file as the plugin does, and a ring that was left behind.
RANK_UID = 64_321  # nobody's
RANK = f"""
import fcntl, os, sys
os.setresgid(*[{RANK_UID}] * 3)
os.setresuid(*[{RANK_UID}] * 3)
os.umask(0o077)
ring = open(sys.argv[1] + "/rings/rank.ring", "w+b")
ring.write(bytes(64))
ring.flush()
fcntl.lockf(ring, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def rank_place() -> Iterator[Path]:
    """A directory with a rank's ring files that everybody can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="lockstep-capabilities-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "rings").mkdir()
        (place / "rings").chmod(0o1777)
        environment = {"LOCKSTEP_JOB": "job-7", "RANK": "3"}
        command = [sys.executable, "-ISc", RANK, name]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"held\n"
            (place / "pid").write_text(str(rank.pid))
            yield place
            rank.kill()


@pytest.fixture
def place(rank_place: Path) -> Path:
    """The same directory, with the ring that was left behind; somebody may have taken it away."""
    left = rank_place / "rings/left.ring"
    left.touch(0o600)
    os.chown(left, RANK_UID, RANK_UID)
    return rank_place


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """What says why not; nothing where the kernel allows it to the collector's user with these capabilities."""
    command = [sys.executable, "-m", "tests.deploy.bounded"]
    with subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bounded:

        def ask(question: str, capabilities: Set[str], place: Path) -> str:
            assert bounded.stdin is not None
            assert bounded.stdout is not None
            print(",".join(sorted(capabilities)), question, place, sep="\t", file=bounded.stdin, flush=True)
            return bounded.stdout.readline().removesuffix("\n")

        yield ask


def is_free_for_all(question: str) -> bool:
    """Return whether this kernel asks for no capability where another one does."""
    if question == "hear_exits":  # since Linux 6.6
        major, minor = platform.release().split(".")[:2]
        return (int(major), int(minor)) >= (6, 6)
    return question == "read_kernel_log" and Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "0"


@pytest.mark.slow
def test_collector_without_any_works_and_says_what_it_may_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("lks_0123456789abcdef_" + "t" * 43)
    with FakeGateway() as gateway:
        own = {"TOKEN_FILE": str(tmp_path / "token"), "SERVER": gateway.url, "LISTEN": f"127.0.0.1:{free_port()}"}
        environment = {f"LOCKSTEP_COLLECTOR_{name}": value for name, value in own.items()}
        environment["LOCKSTEP_STATE_DIR"] = str(tmp_path / "state")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", LOCKSTEP, "collect"]
        collector = Running("collector", command, environment, tmp_path)
        try:
            collector.wait_until(lambda: len(gateway.received) >= 3)
            assert collector.stop() == 0, collector.output
        finally:
            collector.kill()
    assert is_free_for_all("read_kernel_log") or "kernel log cannot be read" in collector.output


def test_the_unit_grants_what_the_questions_need_and_nothing_else() -> None:
    granted = read_unit("lockstep-collector.service").only("AmbientCapabilities").split()
    assert set(granted) == set[str]().union(*NEEDED.values())
    assert NEEDED.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("question", QUESTIONS)
def test_these_capabilities_are_enough(question: str, place: Path, ask: Ask) -> None:
    assert ask(question, NEEDED[question], place) == ""


@pytest.mark.parametrize(("question", "missing"), [(q, c) for q, needed in NEEDED.items() for c in sorted(needed)])
def test_without_one_of_them_the_kernel_refuses(question: str, missing: str, place: Path, ask: Ask) -> None:
    refusal = ask(question, NEEDED[question] - {missing}, place)
    assert bool(re.search(r"PermissionError|Permission denied|not permitted", refusal)) != is_free_for_all(question)
