"""Tokens that a killed engine noted without storing their rows, forgotten before it starts again.

`forget_orphans.sh` says why. It is a shell script because it also has to run where a ClickHouse server starts, beside
which there may be no Python.
"""

import subprocess
from importlib.resources import as_file, files
from pathlib import Path

import structlog

from lockstep.errors import StoreError

_log = structlog.get_logger("store")


def forget_orphans(data: Path) -> None:
    """Make a retry of what a kill cut short count; the engine of this data directory must not be running."""
    with as_file(files("lockstep.store") / "forget_orphans.sh") as script:
        done = subprocess.run(["sh", str(script), str(data)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StoreError(f"cannot check the store in {data} after its last end: {done.stderr.strip()}")
    for line in done.stderr.splitlines():
        _log.info("the engine had been killed in mid-insert", found=line)
