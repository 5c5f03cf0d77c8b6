"""What the gateway remembers beyond its log: how far each agent has been acknowledged, and segments counted."""

import json
from pathlib import Path

from api.gateway.log import Entry, list_segments, read_segment, segment_number, write_atomically

_KEEP_NS = 30 * 86_400_000_000_000  # a boot that was silent for a month will not come back with old batches


class Watermarks:
    """The highest number acknowledged per agent and boot; agents send in order, one batch at a time.

    `last_segment` is the highest number that a segment ever had. It outlives the segments, because a number used
    twice would make the store take new rows for old ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[tuple[str, str], tuple[int, int]] = {}  # number, when it came
        self.last_segment = 0
        if path.exists():
            saved = json.loads(path.read_text(encoding="utf-8"))
            self.last_segment = saved["last_segment"]
            self._marks = {(agent, boot): (number, seen_ns) for agent, boot, number, seen_ns in saved["marks"]}

    def get(self, agent: str, boot: str) -> int:
        """Return the highest number acknowledged, 0 when there is none."""
        return self._marks.get((agent, boot), (0, 0))[0]

    def is_new(self, entry: Entry) -> bool:
        return entry.number > self.get(entry.agent, entry.boot)

    def advance(self, entry: Entry) -> None:
        if self.is_new(entry):
            self._marks[entry.agent, entry.boot] = (entry.number, entry.received_ns)

    def save(self, now_ns: int) -> None:
        """Write them down; called before the log that they came from is deleted."""
        self._marks = {key: mark for key, mark in self._marks.items() if now_ns - mark[1] < _KEEP_NS}
        marks = [[agent, boot, number, seen] for (agent, boot), (number, seen) in sorted(self._marks.items())]
        document = {"last_segment": self.last_segment, "marks": marks}
        write_atomically(self._path, json.dumps(document).encode())


def read_backlog(directory: Path, watermarks: Watermarks) -> int:
    """Return the bytes that wait in the log, and learn from it what was acknowledged."""
    total = 0
    for path in list_segments(directory):
        for entry in read_segment(path).entries:
            watermarks.advance(entry)
        watermarks.last_segment = max(watermarks.last_segment, segment_number(path))
        total += path.stat().st_size
    return total
