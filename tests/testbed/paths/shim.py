"""The preload library that gives connections their planned source ports: built here, and put into an environment."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError, NotPresent

SOURCES = Path(__file__).resolve().parents[3] / "path_shim"
LIBRARY = "liblockstep-paths.so"
VERBS_LIBRARY = "liblockstep-verbs.so"
AGENT = "@lockstep-paths"  # abstract: every network namespace, and so every host of a fabric, has its own


def build(folder: Path, *programs: str) -> Path:
    """Build the library, and programs of its tests, in a folder; NotPresent without what that needs."""
    missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
    if missing or not (SOURCES / "Makefile").is_file():
        needed = " and ".join(missing) or "path_shim, which only a checkout has"
        raise NotPresent(f"the path shim cannot be built here without {needed}")
    targets = [str(folder / name) for name in (LIBRARY, *programs)]
    command = ["make", "--silent", "-C", str(SOURCES), f"BUILD={folder}", *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockstepError(f"the path shim cannot be built: {done.stderr.strip()[-2000:]}")
    return folder / LIBRARY


@dataclass(frozen=True, slots=True)
class ShimFiles:
    """Where the shim finds its plan and leaves its reports."""

    library: Path
    folder: Path
    agent: str = AGENT

    @property
    def plan(self) -> Path:
        return self.folder / "paths" / "plan"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def environment(self) -> dict[str, str]:
        """Return our environment with the shim in it; programs that are started with it are planned."""
        self.reports.mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "LOCKSTEP_PATHS_FILE": str(self.plan),
            "LOCKSTEP_PATHS_AGENT": self.agent,
            "LOCKSTEP_PATHS_REPORT_DIR": str(self.reports),
        }
