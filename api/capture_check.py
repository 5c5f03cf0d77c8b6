"""Can a capture be read in bounded memory? `python -m api.capture_check ARCHIVE BYTES` tells before we try it here.

Half a kilobyte of Parquet can hold gigabytes of the same value, whatever its own description says of its size.
"""

import resource
import subprocess
import sys
from pathlib import Path

from lockstep.capture.files import read_capture
from lockstep.errors import BadInput, LockstepError

LONGEST_S = 600.0
_OURS = 2 << 30  # address space of Python and Arrow themselves
_MOST_TEXT = 500


def check_apart(archive: Path, most_bytes: int) -> None:
    """Raise BadInput with the child's sentence where an archive is no capture, or one that does not fit."""
    command = [sys.executable, "-m", "api.capture_check", str(archive), str(most_bytes + _OURS)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"reading the capture took more than {LONGEST_S:.0f} s and was given up") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BadInput((lines[-1] if lines else f"reading the capture ended with {done.returncode}")[:_MOST_TEXT])


def main(archive: Path, most_bytes: int) -> int:
    """Read the capture with so much memory, or print one sentence on standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        read_capture(archive)
    except (LockstepError, MemoryError) as error:
        sys.stderr.write(f"{str(error) or 'the capture does not fit into memory'}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
