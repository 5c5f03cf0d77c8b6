"""What the kernel cannot tell of one process is said once, and hides nothing of the others."""

from pathlib import Path

from structlog.testing import capture_logs

from collector.connections.flows import Kernel, KernelView
from collector.connections.processes import NcclProcess
from collector.supervision import Membership


def process(pid: int) -> NcclProcess:
    return NcclProcess(pid, pid, 0, pid, (), Membership(), "", 0, {}, holds_ring=False)


def test_zombie_beside_a_rank_is_one_line_in_the_log_and_not_one_a_reading(tmp_path: Path) -> None:
    for pid in ("self", "7"):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
        (tmp_path / "proc" / pid / "ns/net").symlink_to("net:[1]")
    (tmp_path / "proc" / "8").mkdir()  # has no namespaces any more, and nobody waits for it
    view = KernelView(tmp_path, Kernel(sockets=lambda _: [], addresses=lambda _: {}, pairs=list))
    with capture_logs() as lines:
        found = [view.sockets_of([process(8), process(7)]) for _ in range(3)]
    assert [list(each) for each in found] == [[7]] * 3
    assert [line["event"] for line in lines] == ["the kernel does not show all of connections"]
