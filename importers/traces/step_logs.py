"""Step times in logs of training: the lines of Megatron-LM, and the records of MLPerf.

Both become rows of `steps` and nothing else, as reported by the job; a host is not named, so rank 0 stands for all.

- Megatron-LM writes the mean of the iterations since the line before. The row has the number of the last one and that
  mean as its length. Lines without a time follow each other, and the last one ended when the file was last written.
- MLPerf: `tracked_stats` with a `train_step_time` is one step. Where there are none, two `train_loss` within a block
  are a mean of the steps between them, by their samples and the `global_batch_size`.

A step number that falls back is another attempt: the job went on from a checkpoint.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from importers.traces.nccl_tests import Log
from importers.traces.readings import Loose, Reading, parse_json, validated
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput

_ITERATION = re.compile(r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.\d]*\]\s+)?iteration\s+(\d{1,15})/\s*\d{1,15} \|")
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\): (\d{1,12}(?:\.\d{1,9})?)")
_NS_PER_MS = 1_000_000
_MARK = ":::MLLOG "
_UNCLEAR = "steps were left out, because they took no time or began before 1970"


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    length_ns: int
    end_ns: int | None  # None: follows the one before
    covers: int = 1  # steps whose mean it is


class _Values(Loose):
    train_step_time: float | None = Field(None, ge=0, le=1e9)


class _Metadata(Loose):
    samples_count: int | None = None
    step: int | None = None


class _Record(Loose):
    time_ms: int = Field(ge=0, le=1 << 43)
    event_type: str = ""
    key: str
    value: object = None
    metadata: _Metadata = _Metadata()


def parse_megatron(logs: Iterable[Log], job: str) -> Reading:
    """Return the iterations that these logs of Megatron-LM tell of; a log without any is a BadInput."""
    reading = Reading()
    for log in logs:
        _add_steps(reading, list(_read_iterations(log)), log, job, "no iteration of Megatron-LM")
    return reading


def parse_mlperf(logs: Iterable[Log], job: str) -> Reading:
    """Return the steps that these logs of MLPerf tell of; a log without any is a BadInput."""
    reading = Reading()
    for log in logs:
        records = list(_read_records(log))
        steps = list(_find_tracked(records)) or list(_find_between_losses(records))
        _add_steps(reading, steps, log, job, "no step times of MLPerf")
    return reading


def _read_iterations(log: Log) -> Iterator[_Step]:
    before: int | None = None
    for raw in log.lines:
        line = raw.decode(errors="replace")
        found, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
        if found and elapsed:
            number = int(found[2])
            covers = number - before if before is not None and number > before else 1
            yield _Step(number, round(float(elapsed[1]) * _NS_PER_MS), _end_ns(found[1]), covers)
            before = number


def _end_ns(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * NS_PER_S
    except ValueError:
        return None


def _read_records(log: Log) -> Iterator[_Record]:
    for number, raw in enumerate(log.lines, 1):
        _, mark, text = raw.decode(errors="replace").partition(_MARK)
        if mark:
            location = f"{log.file}, line {number}"
            yield validated(_Record, parse_json(location, text), location)


def _find_tracked(records: Iterable[_Record]) -> Iterator[_Step]:
    tracked = (record for record in records if record.key == "tracked_stats" and isinstance(record.value, dict))
    for number, record in enumerate(tracked):
        seconds = validated(_Values, record.value, "tracked_stats").train_step_time
        if seconds is not None:
            yield _Step(number, round(seconds * NS_PER_S), record.time_ms * _NS_PER_MS)


def _find_between_losses(records: Iterable[_Record]) -> Iterator[_Step]:
    batch, before = 0, None
    for record in records:
        if record.key == "global_batch_size" and isinstance(record.value, int):
            batch = record.value
        elif record.key != "train_loss":
            before = before if record.event_type == "POINT_IN_TIME" else None  # an evaluation lies between
        elif batch > 0 and (samples := record.metadata.samples_count) is not None:
            if before and samples > before[0]:
                covers = max((samples - before[0]) // batch, 1)
                length_ns = (record.time_ms - before[1]) * _NS_PER_MS // covers
                yield _Step(samples // batch, length_ns, record.time_ms * _NS_PER_MS, covers)
            before = (samples, record.time_ms)


def _add_steps(reading: Reading, steps: list[_Step], log: Log, job: str, missing: str) -> None:
    if not steps:
        raise BadInput(f"{log.file}: has {missing} in it")
    rows = reading.rows.get("steps", [])
    attempt, last = (int(str(rows[-1][name])) for name in ("attempt", "step")) if rows else (0, -1)
    clock_ns = log.ts_ns - sum(step.length_ns * step.covers for step in steps)
    for step in steps:
        clock_ns = step.end_ns if step.end_ns is not None else clock_ns + step.length_ns * step.covers
        attempt, last = attempt + (step.number <= last), step.number
        if step.length_ns <= 0 or clock_ns < step.length_ns:
            reading.unread[_UNCLEAR] += 1
            continue
        row = {"host": "rank-0", "job": job, "attempt": attempt, "world_rank": 0, "step": step.number}
        reading.add("steps", row | {"start_ns": clock_ns - step.length_ns, "end_ns": clock_ns, "source": "told"})
