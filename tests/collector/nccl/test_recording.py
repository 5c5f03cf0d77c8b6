"""Recording a live job: every callback for a while, and the job as it was afterwards."""

import json
import threading
from collections import Counter
from pathlib import Path

from importers.traces.nccl_callbacks import Trace, read_events
from importers.traces.recording import Limits, Recorded, lines_of, living_processes, record, traced
from lockstep import wire
from lockstep.clock import SystemClock
from tests.waiting import eventually

PLENTY = 64 << 20


def _trace(processes: list[Recorded], callbacks: int, limit: int = PLENTY) -> bool:
    """Record until there are so many callbacks, however long a busy machine takes for them."""
    stop = threading.Event()

    def stop_when_enough(_: float) -> None:
        if sum(map(len, processes[0].pieces)) >= callbacks:
            stop.set()

    with traced(processes):
        eventually(lambda: processes[0].ring.status()["level"] == wire.TRACE)
        return record(processes, Limits(60, limit), SystemClock(), stop, stop_when_enough)


def test_trace_holds_every_callback_of_the_time_in_order_can_be_read_again_and_ends_when_its_memory_is_full(
    live_rings: Path, tmp_path: Path
) -> None:
    (live_rings / "1-2.ring").write_bytes(b"somebody else's")
    with living_processes(live_rings) as processes:
        assert _trace(processes, 500)
        lines = list(lines_of(processes, "job 7"))
        eventually(lambda: processes[0].ring.status()["level"] == wire.TRANSFERS)  # which it had before
        assert not _trace(processes, 1_000_000, limit=10_000)
    about, header, *events = map(json.loads, lines)
    assert (about["run"], about["ranks"], about["lost"]) == ("job 7", 1, 0)
    assert header["rank"] == 3
    assert [comm["id"] for comm in header["header"]["comms"]] == ["a72e744e3e8dda49"]
    starts = Counter(event["type"] for event in events if event["ev"] == "start")
    assert starts["Coll"] > 20
    assert max(starts.values()) - min(starts.values()) <= 1  # one of each per operation; the last may be cut
    assert set(starts) == {"CollApi", "Coll", "ProxyOp", "ProxyStep"}
    numbers = [event["seq"] for event in events if event["type"] == "Coll" and event["ev"] == "start"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    assert len(list(read_events(Trace(file)))) == len(events)
