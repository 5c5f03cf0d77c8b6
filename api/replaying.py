"""Judges a capture anew in a process of its own: `python -m api.replaying ARCHIVE` prints a Replay as JSON.

The embedded engine has one directory per process, and what a capture holds is not trusted with the web process.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import Field, ValidationError

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import VERDICTS_FILE, read_capture, unpack
from lockstep.clock import SystemClock
from lockstep.errors import BadInput, LockstepError
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.topology import TopologyIndex
from lockstep.verdict import Frozen, Verdict

LONGEST_S = 1800.0  # the largest captures that can be brought in are judged in a few minutes
_MOST_VERDICTS = 4 << 20  # bytes: they are kept in the web process, for two hundred operations
_MOST_TEXT = 500  # characters of a failure that are told


class Replay(Frozen):
    """What a capture is judged to be now, and what it was when it was made."""

    verdicts: tuple[Verdict, ...]
    before: tuple[Verdict, ...] | None = Field(None, description="as the capture came with; None: without any")
    rows: int = Field(ge=0, description="that were looked at")


def replay_apart(
    archive: Path, started: Callable[["subprocess.Popen[bytes]"], None], limit_s: float = LONGEST_S
) -> Replay:
    """Return how a capture is judged, by a child process; BadInput with its sentence where it cannot be judged."""
    command = [sys.executable, "-m", "api.replaying", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        started(child)
        try:
            out, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise BadInput(f"judging the capture took more than {limit_s:.0f} s and was given up") from None
    if child.returncode != 0:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise BadInput(
            (lines[-1] if lines else f"judging the capture ended with code {child.returncode}")[:_MOST_TEXT]
        )
    return Replay.model_validate_json(out)


def replay(archive: Path) -> Replay:
    """Return how a capture is judged, in this process, which must have no other store open."""
    with tempfile.TemporaryDirectory(prefix="lockstep-replay-") as folder:
        unpacked = Path(folder, "capture")
        unpacked.mkdir()
        unpack(archive, unpacked)
        capture = read_capture(unpacked)
        before = _read_verdicts(unpacked / VERDICTS_FILE)
        with open_store(f"chdb://{Path(folder, 'store')}") as store:
            migrate(store, Layout(store.database), SystemClock().now_ns())
            rows = load_capture(store, capture)
            topology = TopologyIndex(capture.topology) if capture.topology else None
            incidents = diagnose(store, topology, FollowOptions(), capture.info.job)
    return Replay(verdicts=tuple(incident.verdict for incident in incidents), before=before, rows=rows)


def _read_verdicts(file: Path) -> tuple[Verdict, ...] | None:
    if not file.is_file():
        return None
    if file.stat().st_size > _MOST_VERDICTS:
        raise BadInput(f"{VERDICTS_FILE} in the capture has more than {_MOST_VERDICTS >> 20} MiB")
    try:
        return tuple(Verdict.model_validate(each) for each in json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        raise BadInput(f"{VERDICTS_FILE} in the capture cannot be read: {str(error)[:200]}") from None


def main(archive: Path) -> int:
    """Print how a capture is judged, or one sentence on standard error."""
    try:
        sys.stdout.write(replay(archive).model_dump_json(by_alias=True))
    except LockstepError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
