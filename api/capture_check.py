"""Can a capture be read in bounded memory? `python -m api.capture_check ARCHIVE` tells before we try it here.

Half a kilobyte of Parquet can hold gigabytes of the same value, whatever its own description says of its size.
"""

import sys
from pathlib import Path

from lockstep.capture.files import read_capture
from lockstep.hostile_files import ReadLimits, check_apart, read_limited

_OURS = 2 << 30  # address space of Python and Arrow themselves
_CPU_S = 600


def check_capture(archive: Path, most_bytes: int) -> None:
    """Raise BadInput with the child's sentence where an archive is no capture, or one that does not fit."""
    check_apart(archive.name, "api.capture_check", [str(archive)], ReadLimits(most_bytes + _OURS, _CPU_S))


if __name__ == "__main__":
    read_limited(lambda: read_capture(Path(sys.argv[1])), *sys.argv[2:])
