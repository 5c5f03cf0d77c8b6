"""Logs of nccl-tests become communicators and events, or one sentence with file and line."""

import os
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers.traces.nccl_tests import Log, parse_nccl_tests
from importers.traces.readings import Reading, count_sentences
from lockstep.errors import BadInput
from tests.importers.traces.build import Told, refusal, sound

T0 = 1_700_000_000_000_000_000

HEAD = """# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid 101 on a1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 102 on a1 device  1 [0000:1c:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid 201 on a2 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
ROWS = """\
           8            2     float     sum      -1    12.50    0.00    0.01       0    11.25    0.00    0.01    N/A
          16            4     float     sum      -1   1.3e+3   26.40   47.51       0    13.00   26.38   47.49       0
"""
TAIL = """# Out of bounds values : 0 OK
# Avg bus bandwidth    : 43.7587
#
# Collective test concluded: all_reduce_perf
"""
OLD = """# nThread 1 nGpus 2 minBytes 1 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 0
#
# Using devices
#   Rank  0 Pid 112424 on localhost device  0 [0x00] A100-SXM4-40GB
#   Rank  1 Pid 112424 on localhost device  1 [0x00] A100-SXM4-40GB
#
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
hostname:3442:3442 [0] NCCL INFO Launch mode Parallel
           4             1   float             34.73    0.00    0.00  2e-07    35.30    0.00    0.00    N/A
# Avg bus bandwidth    : 0
"""


def read(*texts: str) -> Reading:
    logs = [Log(f"{n}.log", text.encode().splitlines(keepends=True), T0) for n, text in enumerate(texts)]
    return sound(parse_nccl_tests(logs, "j"))


def events(*texts: str) -> list[Told]:
    rows: list[Told] = read(*texts).tables()["events"].to_pylist()
    return rows


def test_every_size_is_an_event_of_the_host_that_wrote_the_log() -> None:
    small, large = events(HEAD + ROWS + TAIL)
    assert (small["host"], small["ts_ns"], small["source"], small["kind"]) == ("a1", T0, "nccl-tests", "nccl_test")
    assert (small["component"], small["severity"]) == ("job:j", "info")
    assert small["message"] == (
        "all_reduce_perf size=8 count=2 type=float out_of_place_us=12.50 out_of_place_algbw_gbs=0.00 "
        "out_of_place_busbw_gbs=0.01 out_of_place_wrong=0 in_place_us=11.25 in_place_algbw_gbs=0.00 "
        "in_place_busbw_gbs=0.01 (3 ranks on a1, a2)"
    )
    assert "out_of_place_us=1.3e+3" in large["message"]
    (event,) = events(OLD)  # which tells no test, and a deviation that is no count
    assert (event["host"], event["severity"]) == ("localhost", "info")
    assert event["message"].startswith("nccl-tests size=4 count=1 type=float out_of_place_us=34.73 ")
    assert "out_of_place_deviation=2e-07" in event["message"]
    assert read(OLD).rows["comms"][0]["gpu_pci"] is None


def pair_log(first: str, last: str, busbw_gbs: float) -> str:
    head = HEAD.replace("a1 device  1", "a2 device  1").replace("a1 ", f"{first} ").replace("a2 ", f"{last} ")
    row = f"  1073741824 67108864 float sum -1 39991.8 26.85 {busbw_gbs} 0 39899.1 26.91 {busbw_gbs - 0.1} 0\n"
    return head + row + TAIL


def compared(rates: dict[tuple[str, str], float]) -> tuple[list[tuple[object, object]], Told]:
    """Return which hosts are said to be slow with the rates of these pairs, and what was left out."""
    reading = read(*(pair_log(*pair, rate) for pair, rate in rates.items()))
    slow = [row for row in reading.rows["events"] if row["kind"] == "nccl_test_slow"]
    return [(row["component"], row["message"]) for row in slow], reading.unread


def test_host_that_is_slow_with_all_others_is_told_a_slow_pair_of_two_good_hosts_and_what_nobody_judged() -> None:
    rates = dict.fromkeys(combinations(("h1", "h2", "h3", "h4", "h5"), 2), 40.0)
    healthy, unread = compared(rates)
    assert (healthy, any(unread.values())) == ([], False)
    what = "reaches 50% of the usual bus bandwidth in all_reduce_perf of 1073741824 bytes"
    slow, _ = compared(rates | {pair: 20.0 for pair in rates if "h4" in pair})
    assert slow == [("host:h4", f"h4 {what} with 4 other hosts")]
    assert compared(rates | {("h2", "h3"): 20.0})[0] == [("job:j", f"h2 with h3 {what}")]
    slow, unread = compared({("h1", "h2"): 40.0, ("h2", "h3"): 4.0})
    (sentence,) = count_sentences(unread)
    assert (slow, sentence.partition(": ")[0]) == ([], "2 results are kept as events and judged by nobody")


def test_every_device_is_a_rank_of_a_communicator() -> None:
    rows = read(HEAD + ROWS + TAIL).tables()["comms"].to_pylist()
    assert [(row["rank"], row["host"], row["pid"], row["gpu_pci"]) for row in rows] == [
        (0, "a1", 101, "0000:1b:00"),
        (1, "a1", 102, "0000:1c:00"),
        (2, "a2", 201, "0000:1b:00"),
    ]
    first = rows[0]
    assert (first["nranks"], first["nnodes"], first["gpu"], first["init_ns"]) == (3, 2, None, T0)
    assert (first["name"], first["nccl_version"]) == ("all_reduce_perf", "2.29.2")
    assert first["plugin_version"] == "nccl-tests 2.17.8"
    three = read(HEAD + ROWS + TAIL + "\n" + HEAD + ROWS + TAIL, HEAD + ROWS + TAIL)
    assert len({row["comm"] for row in three.rows["comms"]}) == 3, "each test has its own"


def test_wrong_results_are_errors_and_a_test_that_fails_one_of_the_host_that_noticed() -> None:
    wrong = ROWS.replace("47.51       0 ", "47.51       3 ")
    ill = [event for event in events(HEAD + wrong + TAIL.replace("0 OK", "3 FAILED")) if event["severity"] == "error"]
    assert [event["kind"] for event in ill] == ["wrong_results", "wrong_results"]
    assert "out_of_place_wrong=3" in ill[0]["message"]
    assert ill[1]["message"] == "all_reduce_perf: 3 values out of bounds"
    trouble = (
        "a2: Test NCCL failure alltoall.cu:274 'remote process exited or there was a network error / '\n"
        " .. a2 pid 340134: Test failure common.cu:484\n .. a2 pid 340134: Test failure common.cu:693\n"
    )
    (event,) = events(HEAD + trouble)
    assert (event["host"], event["kind"], event["component"]) == ("a2", "nccl_test_failed", "host:a2")
    assert (event["severity"], "remote process exited" in event["message"]) == ("error", True)


def test_test_that_just_ends_is_a_warning_and_what_stands_around_the_lines_is_passed_over() -> None:
    *_, event = events(HEAD + ROWS)
    assert (event["kind"], event["severity"]) == ("nccl_test_unfinished", "warning")
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + ROWS + TAIL).splitlines())
    assert len(events(tagged)) == 2, "as mpirun tags them"
    talk = HEAD + "a1:101:101 [0] NCCL INFO Channel 00/08\n" + ROWS + "12 monkeys\n" + TAIL
    assert len(events(talk)) == 2


DEVICELESS = "\n".join(line for line in HEAD.splitlines() if "Rank" not in line) + "\n" + ROWS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "8 2 float sum -1 12.5 0 0 0\n", "0.log, line 13: is no whole row of the table"),
        (HEAD + "8 2 float sum -1 a b c d e f g h\n", "0.log, line 13: is no whole row of the table"),
        (DEVICELESS, "0.log, line 10: nothing above it says on which devices"),
        *((text, "0.log: has no test of nccl-tests in it") for text in ("", "garbage\n", "size count type\n")),
    ],
)
def test_log_that_cannot_be_is_refused_with_its_line(text: str, sentence: str) -> None:
    assert refusal(lambda: read(text)).startswith(sentence)


@given(st.binary(max_size=400))
def test_whatever_stands_in_a_log_gives_rows_or_a_sentence(noise: bytes) -> None:
    log = Log("x.log", (HEAD.encode() + noise + b"\n" + ROWS.encode()).splitlines(keepends=True), T0)
    try:
        tables = parse_nccl_tests([log], "j").tables()
    except BadInput as refused:
        assert str(refused).startswith("x.log, line ")  # noqa: PT017  # either is right
    else:
        assert "events" in tables


def test_real_logs_of_two_clusters_are_read_in_full() -> None:
    folder = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not folder:
        pytest.skip("LOCKSTEP_PUBLIC_DATA does not name the folder with public data: no real logs to read")
    paths = sorted(Path(folder, "nccl_tests_cluster").glob("*/*.log"))
    reading = parse_nccl_tests([Log(str(path), path.read_bytes().splitlines(), T0) for path in paths], "j")
    kinds = Counter(row["kind"] for row in reading.rows["events"])
    # Eight pairs of the cluster with one GPU a node reach 6 to 8 % in both tests; the other cluster is healthy.
    assert kinds == {"nccl_test": 4940, "nccl_test_failed": 2, "nccl_test_unfinished": 3, "nccl_test_slow": 16}
    slow = {str(row["host"])[:6] for row in reading.rows["events"] if row["kind"] == "nccl_test_slow"}
    assert slow == {"cnode2"}
    assert {row["host"] for row in reading.rows["events"] if row["kind"] == "nccl_test_failed"} == {"cnode2-016"}
    assert not reading.unread
