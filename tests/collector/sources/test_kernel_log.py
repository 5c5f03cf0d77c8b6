"""The kernel's log becomes events: each once, at its time, marked when old, counted when lost or too many."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.sources.kernel_log import MAX_ALIKE, KernelLogSource, Timeline
from lockstep.arrow import schema_of
from lockstep.clock import SystemClock
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0

UPTIME = 1_000 * SECOND  # of the host at T0
BOOT = T0 - UPTIME
OOM = "Out of memory: Killed process 1 (python)"
XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=python, GPU has fallen off the bus."
BEFORE = "(before the collector began) "


def record(seq: int, since_boot_s: float, text: str = OOM) -> str:
    return f"4,{seq},{round(since_boot_s * 1_000_000)},-;{text}\n SUBSYSTEM=pci\n"


class Host:
    """A host whose log is a pipe that, like the device, gives one record a read; time moves when it is told to."""

    def __init__(self, root: Path) -> None:
        (root / "dev").mkdir()
        os.mkfifo(root / "dev/kmsg")
        self._held = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)  # else the pipe forgets between readers
        self._log = os.open(root / "dev/kmsg", os.O_WRONLY)
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_DIRECT)  # a write is a packet, and a read gives one
        fcntl.fcntl(self._log, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for 256 packets, a page for each
        self.uptime_ns = UPTIME
        self.source = KernelLogSource("h0", root, lambda: self.uptime_ns)

    def say(self, *records: str) -> None:
        for text in records:
            os.write(self._log, text.encode())

    def read(self, after_s: float = 0, step_s: float = 0) -> list[dict[str, Any]]:
        """Let time pass and read; `step_s` is how much somebody has set the clock forward in all."""
        self.uptime_ns += round(after_s * SECOND)
        reading = self.source.read(BOOT + self.uptime_ns + round(step_s * SECOND), ())
        self.watermark_ns = reading.watermark_ns
        if not reading.tables:
            return []
        assert reading.tables["events"].schema == schema_of(TABLE_BY_NAME["events"])
        rows: list[dict[str, Any]] = reading.tables["events"].to_pylist()
        return rows

    def close(self) -> None:
        self.source.close()
        os.close(self._held)
        os.close(self._log)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def write_log(root: Path, *records: str) -> None:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kmsg").write_text("".join(records))


def read_file_log(root: Path) -> list[dict[str, Any]]:
    with closing(KernelLogSource("h0", root, lambda: UPTIME)) as source:
        tables = source.read(T0, ()).tables
    return tables["events"].to_pylist() if tables else []


def seconds_of(rows: list[dict[str, Any]]) -> list[float]:
    return [(row["ts_ns"] - BOOT) / SECOND for row in rows]


def test_new_line_becomes_an_event_at_its_time_and_is_marked_when_it_is_older_than_the_collector(host: Host) -> None:
    host.say(record(5_000, 1, "usb 1-1: new device"), record(5_001, 10), record(5_002, 900.5))
    rows = host.read()
    assert seconds_of(rows) == [10, 900.5]
    assert [row["message"] for row in rows] == [BEFORE + OOM] * 2
    assert host.read() == []
    assert host.watermark_ns == T0, "a quiet log is complete up to now"
    host.say(record(5_003, 1_000.25, XID))
    (row,) = host.read(after_s=1)
    message = XID + " [XID 79: GPU fell off the bus; RESTART_BM; blame hardware]"
    expected = {"host": "h0", "ts_ns": T0 + SECOND // 4, "source": "kernel_log", "kind": "xid"}
    expected |= {"component": "gpu:h0/0000:41:00.0", "severity": "critical", "message": message}
    expected |= {"detail": '{"xid": 79, "blame": "hardware"}'}
    assert row == dict.fromkeys(("rank", "pid", "signal", "exit_code")) | expected
    whole = record(5_044, 1_001.5)
    host.say(whole[:20])
    assert host.read(after_s=1) == [], "a line that is still being written waits for its end"
    host.say(whole[20:])
    lost, oom = host.read(after_s=1)
    assert (lost["kind"], lost["component"], lost["severity"]) == ("log_lost", "host:h0", "warning")
    assert lost["message"] == "40 records of the kernel's log were overwritten before they were read"
    assert oom["kind"] == "oom"


def test_plain_file_is_read_too_also_where_a_read_ends_inside_a_line_and_behind_garbage(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no kernel log at {tmp_path}/dev/kmsg"):
        read_file_log(tmp_path)
    garbage = ["", "\n\n", "garbage", "6,1,10,-;\x00\x01\x7f\n", ";;;\n,,,;\n 5,1,1,-;x\n", "-1,0,0,-;x\n"]
    for text in garbage:
        write_log(tmp_path, text, "\n", record(2, 5))
        assert seconds_of(read_file_log(tmp_path)) == [5], text
    # One a second, so that nothing is folded; more than a buffer, so that lines are cut.
    write_log(tmp_path, *(record(number, number) for number in range(500)))
    assert seconds_of(read_file_log(tmp_path)) == list(range(500))


def test_nic_gets_the_name_that_the_host_knows_it_by_also_in_a_log_that_cannot_be_read_at_first(
    tmp_path: Path,
) -> None:
    log, devices = tmp_path / "dev/kmsg", tmp_path / "sys/bus/pci/devices"
    log.mkdir(parents=True)  # opens, and cannot be read
    for name in ("0000:5c:00.0/net/eth2", "0000:5c:00.0/infiniband/mlx5_0", "0000:5d:00.0/infiniband/mlx5_1"):
        (devices / name).mkdir(parents=True)
    source = KernelLogSource("h0", tmp_path, lambda: UPTIME)
    reading = source.read(T0, ())
    assert (reading.tables, reading.watermark_ns) == ({}, T0), "it is not waited for"
    log.rmdir()
    line = "mlx5_core 0000:{}:00.0: Port: 1 Link DOWN"
    write_log(tmp_path, *(record(seq, seq, line.format(bus)) for seq, bus in enumerate(("5c", "5d", "5e"))))
    rows = source.read(T0, ()).tables["events"].to_pylist()
    source.close()
    assert [row["component"] for row in rows] == ["nic:h0/eth2", "nic:h0/mlx5_1", "nic:h0/0000:5e:00.0"]
    assert (seconds_of(rows), rows[0]["message"][: len(BEFORE)]) == ([0, 1, 2], BEFORE)


def fake_reads(monkeypatch: pytest.MonkeyPatch, *answers: str | int) -> None:
    """Answer reads as the kernel does in states that a pipe cannot be brought into; a number is an errno."""
    left = iter(answers)

    def read(fd: int, size: int) -> bytes:
        answer = next(left, errno.EAGAIN)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer.encode()

    monkeypatch.setattr("collector.sources.kernel_log.os.read", read)


def test_read_goes_on_behind_what_was_overwritten_and_a_device_that_fails_is_opened_again_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path)
    with monkeypatch.context() as patch:
        fake_reads(patch, record(1, 1), errno.EPIPE, record(9, 2))
        rows = read_file_log(tmp_path)
    assert [row["kind"] for row in rows] == ["oom", "log_lost", "oom"]
    source = KernelLogSource("h0", tmp_path, lambda: UPTIME)
    with monkeypatch.context() as patch, capture_logs() as lines, closing(source):
        fake_reads(patch, record(1, 1), errno.EIO, errno.EIO, record(1, 1), record(2, 2))
        readings = [source.read(T0, ()) for _ in range(3)]
    seen = [seconds_of(reading.tables["events"].to_pylist()) if reading.tables else [] for reading in readings]
    assert seen == [[1], [], [2]]
    assert source.read_errors == 2
    assert [line["event"] for line in lines] == ["kernel log cannot be read"]


def test_flood_becomes_a_few_events_and_one_count_when_its_second_is_over(host: Host) -> None:
    host.read()
    host.say(*(record(seq, 1_000.5) for seq in range(100)))
    assert len(host.read(after_s=1)) == MAX_ALIKE
    assert host.watermark_ns == T0 + SECOND // 2, "the count is still to come, with this time"
    (count,) = host.read(after_s=1)
    assert (count["kind"], count["ts_ns"]) == ("folded", T0 + SECOND // 2)
    assert count["message"].startswith(f"{100 - MAX_ALIKE} more oom lines")
    assert host.watermark_ns == T0 + 2 * SECOND
    assert host.read(after_s=1) == []


def test_more_than_one_read_s_share_is_read_next_time_and_the_watermark_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path)
    monkeypatch.setattr("collector.sources.kernel_log._MAX_READS", 2)
    with closing(KernelLogSource("h0", tmp_path, lambda: UPTIME)) as source:
        fake_reads(monkeypatch, *(record(seq, seq) for seq in range(3)))
        readings = [source.read(T0, ()) for _ in range(2)]
    assert [seconds_of(reading.tables["events"].to_pylist()) for reading in readings] == [[0, 1], [2]]
    assert [reading.watermark_ns for reading in readings] == [BOOT + SECOND, T0]


def test_no_line_is_put_outside_of_its_two_reads_or_before_one_that_came_earlier(host: Host) -> None:
    host.read()
    host.say(record(1, 993.5))  # printk runs slow
    assert seconds_of(host.read(after_s=1)) == [1_000]
    host.say(record(2, 1_001.6), record(3, 1_001.5), record(4, 1_009.5))
    assert seconds_of(host.read(after_s=1)) == [1_001.6, 1_001.6, 1_002]


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
def test_clock_that_is_set_moves_later_events_by_as_much_and_loses_none(host: Host, step_s: int) -> None:
    host.read()
    host.say(record(1, 1_000.5))
    assert seconds_of(host.read(after_s=1)) == [1_000.5]
    host.say(record(2, 1_001.5))
    assert seconds_of(host.read(after_s=1, step_s=step_s)) == [1_001.5 + step_s]
    assert host.watermark_ns == T0 + (2 + step_s) * SECOND


@pytest.mark.needs_root
def test_this_host_s_own_log_is_read_to_its_end_without_an_error() -> None:
    clock = SystemClock()
    with closing(KernelLogSource("h0")) as source:
        if not Path("/dev/kmsg").exists():  # a container may have none, which the source has to say
            with pytest.raises(NotPresent):
                source.read(clock.now_ns(), ())
            return
        watermarks_ns = [source.read(clock.now_ns(), ()).watermark_ns for _ in range(20)]  # a full log takes several
    assert source.read_errors == 0
    assert watermarks_ns[-1] > watermarks_ns[0]


@pytest.mark.parametrize(("boot", "expected"), [("first", [3]), ("second", [1, 2, 3])])
def test_new_agent_goes_on_where_the_last_one_stopped_unless_the_host_was_booted(
    tmp_path: Path, boot: str, expected: list[int]
) -> None:
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("first\n")
    write_log(tmp_path, record(1, 1), record(2, 2))
    with closing(KernelLogSource("h0", tmp_path, lambda: UPTIME)) as before:
        checkpoint = before.read(T0, ()).checkpoint
    assert checkpoint is not None
    write_log(tmp_path, record(1, 1), record(2, 2), record(3, 3))
    boot_id.write_text(boot + "\n")
    with closing(KernelLogSource("h0", tmp_path, lambda: UPTIME)) as after:
        after.resume(checkpoint)
        assert seconds_of(after.read(T0, ()).tables["events"].to_pylist()) == expected


def test_delay_between_the_two_clocks_does_not_move_events_and_there_is_no_time_before_1970() -> None:
    late_ns = SECOND // 20
    for uptimes_ns in ([UPTIME, UPTIME + SECOND + late_ns], [UPTIME + late_ns, UPTIME + SECOND]):
        clocks = Timeline(iter(uptimes_ns).__next__)
        clocks.begin(T0)
        clocks.begin(T0 + SECOND)
        assert clocks.unix_ns(UPTIME) == T0
    clocks = Timeline(lambda: UPTIME)
    clocks.begin(5 * SECOND)
    assert clocks.unix_ns(0) == 0
