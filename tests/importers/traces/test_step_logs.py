"""Step times in logs of Megatron-LM and MLPerf become rows of steps, and one that is neither one sentence."""

import json
import os
from pathlib import Path

import pytest

from importers.traces.nccl_tests import Log
from importers.traces.readings import Reading
from importers.traces.step_logs import parse_megatron, parse_mlperf
from lockstep.errors import BadInput
from tests.builders import SECOND, T0

MS = SECOND // 1000


def iteration(number: int, ms: float, at: str = "") -> bytes:
    told = f" iteration {number:8d}/ 5000 | samples: 96 | elapsed time per iteration (ms): {ms:.1f} |\n"
    return (f" [{at}]{told}" if at else told).encode()


def record(key: str, at_ms: int, value: object = None, kind: str = "POINT_IN_TIME", **metadata: int) -> bytes:
    told = {"time_ms": T0 // MS + at_ms, "event_type": kind, "key": key, "value": value, "metadata": metadata}
    return b"0: :::MLLOG " + json.dumps(told).encode() + b"\n"


ITERATION = iteration(1, 400)
LOSSES = b"".join(
    [
        record("global_batch_size", 0, 8),
        record("train_loss", 1000, 3.0, samples_count=80),
        record("train_loss", 3000, 2.9, samples_count=160),
        record("eval_start", 3100, kind="INTERVAL_START", samples_count=160),
        record("train_loss", 9000, 2.8, samples_count=240),
        record("train_loss", 12000, 2.7, samples_count=320),
    ]
)


def steps(reading: Reading) -> list[tuple[int, int, int, int]]:
    """Return attempt, number, end after T0 and length of each step, both in milliseconds."""
    rows = reading.tables()["steps"].to_pylist()
    assert {row["source"] for row in rows} == {"told"}
    ends = [(row["end_ns"] - T0) // MS for row in rows]
    lengths = [(row["end_ns"] - row["start_ns"]) // MS for row in rows]
    return [(row["attempt"], row["step"], end, length) for row, end, length in zip(rows, ends, lengths, strict=True)]


def log(*lines: bytes, ts_ns: int = T0) -> list[Log]:
    return [Log("a.log", lines, ts_ns)]


def test_iterations_end_when_told_or_with_the_log_and_those_that_fall_back_are_another_attempt() -> None:
    lines = (b"building model\n", iteration(10, 400), iteration(20, 400), iteration(30, 600))
    assert steps(parse_megatron(log(*lines, ts_ns=T0 + 20 * SECOND), "j")) == [
        (0, 10, 10_000, 400),
        (0, 20, 14_000, 400),
        (0, 30, 20_000, 600),
    ]
    at = ("2023-11-14 22:13:21", "2023-11-14 22:13:22", "2023-11-14 22:13:40")
    told = [iteration(number, 900, when) for number, when in zip((7, 8, 8), at, strict=True)]
    found = steps(parse_megatron(log(*told), "j"))
    assert [(attempt, number) for attempt, number, *_ in found] == [(0, 7), (0, 8), (1, 8)]
    assert [end - found[0][2] for *_, end, _ in found] == [0, 1000, 19_000]


def test_mlperf_tells_each_step_or_the_mean_between_two_losses_of_one_block() -> None:
    tracked = [record("tracked_stats", 500 * n, {"train_step_time": 0.5, "reduced_train_loss": 3}) for n in (1, 2)]
    assert steps(parse_mlperf(log(*tracked), "j")) == [(0, 0, 500, 500), (0, 1, 1000, 500)]
    assert steps(parse_mlperf(log(*LOSSES.splitlines()), "j")) == [(0, 20, 3000, 200), (0, 40, 12_000, 300)]


def test_log_without_steps_is_one_sentence_and_a_record_that_is_no_json_is_named_with_its_line() -> None:
    for text in (b"", b"garbage\n", b"iteration 5 of 9\n", b':::MLLOG {"time_ms": 5, "key": "seed"}\n'):
        for parse in (parse_megatron, parse_mlperf):
            with pytest.raises(BadInput, match=r"a\.log: has no "):
                parse(log(text), "j")
    with pytest.raises(BadInput, match=r"a\.log, line 7: is not JSON"):
        parse_mlperf(log(*LOSSES.splitlines(), b":::MLLOG {\n"), "j")


def test_real_log_of_megatron_is_read() -> None:
    folder = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not folder:
        pytest.skip("LOCKSTEP_PUBLIC_DATA does not name the folder with public data: no real logs to read")
    lines = Path(folder, "superbench/megatron_deepspeed.log").read_bytes().splitlines()
    found = steps(parse_megatron([Log("real", lines, T0)], "j"))
    assert [number for _, number, *_ in found] == [1, 2, 3, 4, 5]
    assert found[0][3] == 76_015
