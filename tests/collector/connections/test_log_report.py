"""The story of a process takes whatever its log holds, and has an end in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections import log_report as nccl_log_story
from collector.connections.log_lines import Warned
from collector.connections.log_report import LogReport
from collector.connections.warnings import load_words
from tests.collector.sources.imitated_nccl import REAL_LOG, REAL_PID

HEAD = b"n1:417:417 [0] NCCL INFO "
CHANNEL = HEAD + b"Channel %d/0 : 0[0] -> 1[0] [send] via NET/IB/0"
REAL_LINES = REAL_LOG.read_bytes().splitlines()


def test_lines_of_other_processes_in_the_same_file_are_passed_over() -> None:
    report = LogReport(1)
    for line in REAL_LINES:
        report.take(line)
    assert (report.connections, report.networks, report.pop_troubles(), report.revision) == ({}, {}, [], 0)


def test_connections_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_log_story, "MOST_CONNECTIONS", 3)
    report = LogReport(REAL_PID)
    for number in (0, 1, 2, 3, 4, 0):
        report.take(CHANNEL % number)
    assert (len(report.connections), report.pop_lost(), report.pop_lost()) == (3, 2, 0)


def test_device_that_the_log_has_not_named_has_no_name() -> None:
    report = LogReport(REAL_PID)
    report.take(CHANNEL % 0)
    report.take(HEAD + b"NET/IB: Dev 7 Port 1 qpn 5 mtu 5 LID 1")
    (connection,) = report.connections.values()
    assert (connection.devices, dict(report.queue_pairs)) == ((), {5: ""})


@given(st.permutations(REAL_LINES), st.integers(0, 10_000))
def test_real_lines_in_any_order_and_cut_anywhere_never_raise(lines: list[bytes], cut: int) -> None:
    report = LogReport(REAL_PID)
    for line in lines:
        report.take(line[: cut % (len(line) + 1)] if cut % 3 else line)
    assert len(report.connections) <= 24 * 3


@pytest.mark.parametrize(
    ("sentence", "kind", "port"),
    [
        ("NET/IB : mlx5_3:1 async fatal event: local catastrophic error", "ib_async_fatal", "mlx5_3:1"),
        ("NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)", "ib_async_event", "mlx5_3:1"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1", "ib_call_failed", None),
        ("socketProgress: Connection closed by remote peer n2<4>", "socket_closed", None),
        ("socketProgressOpt: Call to recv from 10.0.0.9<1> failed : Connection timed out", "socket_error", None),
        ("NET/Socket : socket progress error", "net_warning", None),
        ("Cuda failure 'out of memory'", None, None),
    ],
)
def test_warning_has_a_kind_where_it_concerns_a_connection(sentence: str, kind: str | None, port: str | None) -> None:
    trouble = load_words().describe(Warned(sentence))
    assert (trouble.kind, trouble.port, trouble.message) == (kind, port, sentence) if trouble else kind is None
