"""Ranks that stop, hang in the kernel, go on or end are told once each, with who they are; seen on real processes."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from collector.kernel.process import Exit, ProcConnector
from collector.sources.processes import STUCK_READS, Exits, ProcessesSource, RunReports
from lockstep.errors import BadRing, NotPresent
from tests.builders import SECOND, T0
from tests.collector.sources.reader import Reader
from tests.waiting import eventually

RANK = {"RANK": "3", "SLURM_JOB_ID": "4711"}
CLONE = {"x86_64": 56, "aarch64": 220}  # number of the system call
CLONE_VFORK = 0x4000  # linux/sched.h
STUCK = "(pid 42, python3) waits in the kernel and cannot be interrupted"


no_exits = Mock(side_effect=NotPresent("not on this host"))


def source_of(
    *pids: int, root: Path = Path("/"), open_exits: Callable[[], Exits] = no_exits, reports: Path = Path("/nowhere")
) -> ProcessesSource:
    """Return a source that watches these processes and no reports of this machine."""
    return ProcessesSource("h0", root, lambda: pids, open_exits, RunReports(Path("/"), (reports,)))


def meeting(source: ProcessesSource) -> Reader:
    """Return a reader of the source that has got to know the ranks."""
    reader = Reader(source)
    assert reader.rows("events") == []
    return reader


@contextmanager
def rank(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        command or ("sleep", "1000"), env=os.environ | RANK, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        eventually(lambda: b"RANK=3\0" in Path(f"/proc/{process.pid}/environ").read_bytes())  # it is past exec
        yield process
        process.kill()


def end(process: "subprocess.Popen[bytes]", number: int | None) -> None:
    """Kill a process, or let one that reads its input come to its own end."""
    assert process.stdin is not None
    if number is None:
        process.stdin.close()
    else:
        process.send_signal(number)
    process.wait()


def has_state(pid: int, state: str) -> Callable[[], bool]:
    return lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state


def imitate(root: Path, pid: int, state: str = "S", start: int = 100, name: str = "python3", **files: str) -> None:
    """Make a process as the kernel shows it below `root`."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    usual = {"stat": f"{pid} ({name}) {state}{' 0' * 18} {start} 0 0\n", "environ": "RANK=3\0SLURM_JOB_ID=4711\0"}
    for file, text in (usual | files).items():
        (folder / file).write_text(text)


def test_rank_that_is_stopped_and_goes_on_is_reported_once_each() -> None:
    with rank() as process:
        reader = meeting(source_of(process.pid))
        process.send_signal(signal.SIGSTOP)
        eventually(has_state(process.pid, "T"))
        (stopped,) = reader.rows("events")
        assert reader.rows("events") == []
        process.send_signal(signal.SIGCONT)
        eventually(has_state(process.pid, "S"))
        assert [reader.kinds(), reader.kinds()] == [["process_continued"], []]
    message = f"rank 3 of job 4711 (pid {process.pid}, sleep) was stopped by a signal"
    expected = {"host": "h0", "ts_ns": T0 + 2 * SECOND, "source": "processes", "kind": "process_stopped"}
    expected |= {"component": "host:h0", "severity": "warning", "message": message, "rank": 3, "pid": process.pid}
    assert stopped == dict.fromkeys(("signal", "exit_code", "detail")) | expected


def test_rank_that_hangs_in_the_kernel_is_reported_after_some_looks() -> None:
    # The parent of a vfork waits in state D until the child has ended.
    hang = f"ctypes.CDLL(None).syscall({CLONE[platform.machine()]}, {CLONE_VFORK | 17}, 0, 0, 0, 0)"
    show = "print(os.getpid(), flush=True)"
    forever = f"import ctypes, os, time; {show}; {hang}; {show}; time.sleep(1000)"
    with rank(sys.executable, "-ISc", forever) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        child = int(process.stdout.readline())
        try:
            eventually(has_state(process.pid, "D"))
            reader = meeting(source_of(process.pid))
            reported = [reader.rows("events") for _ in range(STUCK_READS + 2)]
        finally:
            os.kill(child, signal.SIGKILL)
        eventually(has_state(process.pid, "S"))
        assert reader.kinds() == ["process_continued"]
    kinds = [[row["kind"] for row in rows] for rows in reported]
    assert kinds == [[]] * (STUCK_READS - 1) + [["process_stuck"], [], []]
    assert "cannot be interrupted" in reported[STUCK_READS - 1][0]["message"]


def test_message_says_what_is_known_and_what_the_kernel_shows_as_nonsense_is_not_watched(tmp_path: Path) -> None:
    forged = {"name": "a) R (\x1b[2Jb\n", "environ": "RANK=-1\0SLURM_JOB_ID=" + "x\x1b" * 500 + "\0no pair"}
    cases: list[tuple[str, dict[str, str], str]] = [
        ("D", {"wchan": "nfs_wait_bit_killable"}, f"rank 3 of job 4711 {STUCK} in nfs_wait_bit_killable"),
        ("t", {"environ": ""}, "(pid 42, python3) was stopped by a debugger"),
        ("T", forged, f"job {'x' * 64} (pid 42, a) R ([2Jb) was stopped by a signal"),
    ]
    for state, files, message in cases:
        imitate(tmp_path, 42, state, **files)  # type: ignore[arg-type]  # none of them is a number
        reader = meeting(source_of(42, root=tmp_path))
        assert [row["message"] for _ in range(STUCK_READS) for row in reader.rows("events")] == [message]
    imitate(tmp_path, 43, "T")
    for text in ("", "garbage", "42 (python3", "42 (x) S 1 2", "42 (x) " + "what " * 30, "\xff" * 99):
        imitate(tmp_path, 42, stat=text)
        assert [row["pid"] for row in meeting(source_of(42, 43, root=tmp_path)).rows("events")] == [43]


def test_rank_met_in_the_midst_of_an_exec_is_known_by_the_next_read_and_a_busy_disk_is_not_reported(
    tmp_path: Path,
) -> None:
    imitate(tmp_path, 42, environ="")
    reader = meeting(source_of(42, root=tmp_path))
    for state in ("D" * (STUCK_READS - 1) + "R") * 3:
        imitate(tmp_path, 42, state)
        assert reader.rows("events") == []
    imitate(tmp_path, 42, "T", environ="")
    (row,) = reader.rows("events")
    assert (row["rank"], row["message"]) == (3, "rank 3 of job 4711 (pid 42, python3) was stopped by a signal")
    imitate(tmp_path, 42, "T", start=999, environ="RANK=5\0")  # another process with the same number
    assert reader.kinds() == ["process_gone"]
    (row,) = reader.rows("events")  # by now it is a rank of its own
    assert row["message"].startswith("rank 5 (pid 42")


@pytest.mark.parametrize("is_reaped", [True, False])
def test_rank_that_is_gone_is_reported_without_a_code_where_the_kernel_does_not_report_it(is_reaped: bool) -> None:
    with rank() as process:
        reader = meeting(source_of(process.pid))
        process.kill()
        if is_reaped:
            process.wait()
        else:
            eventually(has_state(process.pid, "Z"))
        ends = reader.source._end_times
        assert ends
        eventually(lambda: process.pid in ends._ended)
        (row,) = reader.rows("events")
        assert reader.now_ns - SECOND <= row["ts_ns"] < reader.now_ns, "when it ended, not when it was missed"
        assert reader.rows("events") == []
    assert (row["kind"], row["severity"]) == ("process_gone", "error")
    assert row["message"] == f"rank 3 of job 4711 (pid {process.pid}, sleep) is gone; how it ended is unknown"


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("command", "number", "severity", "words"),
    [
        ("read line; exit 0", None, "info", "exited with code 0"),
        ("read line; exit 3", None, "error", "exited with code 3"),
        ("read line", signal.SIGKILL, "error", "was killed by SIGKILL"),
        ("read line", signal.SIGTERM, "warning", "was killed by SIGTERM"),
        ("read line", signal.SIGRTMIN + 3, "error", "was killed by signal 37"),
    ],
)
def test_end_of_a_rank_is_reported_by_the_kernel(command: str, number: int | None, severity: str, words: str) -> None:
    with rank("sh", "-c", command) as process, closing(source_of(process.pid, open_exits=ProcConnector)) as source:
        reader = meeting(source)
        end(process, number)
        (row,) = reader.rows("events")
    assert (row["kind"], row["severity"]) == ("process_exit", severity)
    assert row["message"].endswith(words)
    code = int(words.rpartition(" ")[2]) if number is None else None
    assert (row["rank"], row["pid"], row["signal"], row["exit_code"]) == (3, process.pid, number, code)
    assert reader.now_ns - SECOND <= row["ts_ns"] < reader.now_ns


def test_report_of_the_kernel_is_waited_for_once(tmp_path: Path) -> None:
    others, killed = [Exit(41, 0, 9), Exit(43, 0, 256)], [Exit(42, 0, 9)]
    cases: list[tuple[list[list[Exit]], str]] = [
        ([[], [], killed, []], "process_exit"),  # it comes a read late
        ([[], [], [], []], "process_gone"),
        ([[], others, [], []], "process_gone"),
    ]
    for reads, kind in cases:
        imitate(tmp_path, 42)
        exits = Mock(read=Mock(side_effect=reads))  # stands where the kernel would report
        reader = meeting(source_of(42, root=tmp_path, open_exits=Mock(return_value=exits)))
        (tmp_path / "proc/42/stat").unlink()
        found = [reader.rows("events") for _ in range(3)]
        assert [[row["kind"] for row in rows] for rows in found] == [[], [kind], []]
        assert found[1][0]["ts_ns"] >= T0 + 2 * SECOND, "never before the last read"


def test_known_ranks_are_watched_while_new_ones_cannot_be_found(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        ProcessesSource("h0", tmp_path).read(T0, ())
    imitate(tmp_path, 42)
    lost = BadRing("is no ring file", file="x")
    find = Mock(side_effect=[(42,), lost, lost])
    with capture_logs() as lines:
        reader = meeting(ProcessesSource("h0", tmp_path, find, no_exits, RunReports(tmp_path)))
        assert reader.rows("events") == []
        imitate(tmp_path, 42, "T")
        assert reader.kinds() == ["process_stopped"]
    reported = [line.get("reason") or line["event"] for line in lines]
    assert reported == ["not on this host", "new ranks cannot be found"]
