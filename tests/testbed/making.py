"""Builds C of ours in a folder, or says what that needs."""

import shutil
import subprocess
from pathlib import Path

from lockstep.errors import LockstepError, NotPresent


def make(what: str, sources: Path, folder: Path, *targets: str, needs: Path, brought_by: str) -> None:
    """Run make; NotPresent without its tools, or without the file that it needs besides them."""
    missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
    missing += [] if needs.is_file() else [brought_by]
    if missing:
        raise NotPresent(f"{what} cannot be built here without {' and '.join(missing)}")
    command = ["make", "--silent", "-j2", "-C", str(sources), f"BUILD={folder}", *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockstepError(f"{what} cannot be built: {done.stderr.strip()[-2000:]}")
