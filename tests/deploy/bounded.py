"""What a process may do with certain capabilities only: `python -m tests.deploy.bounded`.

Each line of its input is capabilities, question and place, with tabs between them; each line that it prints says why
not. It imports first and gives up root then, so that it does not matter who may read this repository. The kernel
numbers and the two structures are those of linux/capability.h and linux/prctl.h.
"""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from collector.kernel.foreign_file import ForeignFile
from collector.kernel.process import ProcConnector, RingHolders, read_membership
from collector.sources.kernel_log import KernelLogSource

NUMBERS = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYSLOG": 34,
}
COLLECTOR_UID = 64_123  # nobody's
_PR_SET_KEEPCAPS, _PR_SET_DUMPABLE = 8, 4
_VERSION_3 = 0x2008_0522


def become(capabilities: Sequence[str]) -> None:
    """Become the collector's user with these capabilities, as systemd's AmbientCapabilities do."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(COLLECTOR_UID, COLLECTOR_UID, COLLECTOR_UID)
    os.setresuid(COLLECTOR_UID, COLLECTOR_UID, COLLECTOR_UID)
    bits = sum(1 << NUMBERS[name] for name in capabilities)
    halves = (bits & 0xFFFF_FFFF, bits >> 32)
    head = struct.pack("=Ii", _VERSION_3, 0)
    if libc.capset(head, struct.pack("=6I", *(word for half in halves for word in (half, half, half)))):
        raise OSError(ctypes.get_errno(), "capset")
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after exec; else our own /proc entries were root's


def find_rank(place: Path) -> None:
    pid = int((place / "pid").read_text())
    if pid not in RingHolders(Path("/"), [place / "rings"])():
        raise PermissionError(f"process {pid} is not found")


def know_rank(place: Path) -> None:
    if read_membership(Path("/proc"), int((place / "pid").read_text())).job != "job-7":
        raise PermissionError("its job is not known")


def enter_container(place: Path) -> None:
    """Look for ring files where the process sees them, as for one in a container."""
    root = Path("/proc") / (place / "pid").read_text() / "root"
    os.listdir(root / (place / "rings").relative_to("/"))


def read_ring(place: Path) -> None:
    ForeignFile(place / "rings/rank.ring").close()


def ask_for_detail(place: Path) -> None:
    with closing(ForeignFile(place / "rings/rank.ring", os.O_RDWR)) as ring:
        ring.write_at(0, b"more")


def take_away(place: Path) -> None:
    os.unlink(place / "rings/left.ring")


def hear_exits(_: Path) -> None:
    ProcConnector().close()


def read_kernel_log(_: Path) -> None:
    log = KernelLogSource("host")
    log.read(0, ())
    log.close()
    if log.read_errors:
        raise PermissionError("the kernel's log is not for us")


def send_probe(_: Path) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()


QUESTIONS: dict[str, Callable[[Path], None]] = {
    question.__name__: question
    for question in (
        *(find_rank, know_rank, enter_container, read_ring, ask_for_detail, take_away),
        *(hear_exits, read_kernel_log, send_probe),
    )
}


def ask(question: str, place: Path) -> str:
    """Return why not; empty where the kernel allows it."""
    try:
        QUESTIONS[question](place)
    except Exception as error:  # noqa: BLE001  # whatever it is, it says that this is not allowed
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    read_kernel_log(Path("/"))  # loads what it loads when it is first used
    for line in sys.stdin:
        capabilities, question, place = line.rstrip("\n").split("\t")
        if not os.fork():
            become([name for name in capabilities.split(",") if name])
            print(ask(question, Path(place)), flush=True)
            os._exit(0)
        if os.wait()[1]:
            print("nothing was asked", flush=True)
