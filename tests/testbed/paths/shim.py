"""The preload library that gives connections their planned source ports: built here, and put into an environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.making import make

SOURCES = Path(__file__).resolve().parents[3] / "path_shim"
LIBRARY = "liblockstep-paths.so"
VERBS_LIBRARY = "liblockstep-verbs.so"
AGENT = "@lockstep-paths"  # abstract: every network namespace, and so every host of a fabric, has its own


def build(folder: Path, *programs: str) -> Path:
    """Build the library, and programs of its tests, in a folder; NotPresent without what that needs."""
    targets = [str(folder / name) for name in (LIBRARY, *programs)]
    brought_by = "path_shim, which only a checkout has"
    make("the path shim", SOURCES, folder, *targets, needs=SOURCES / "Makefile", brought_by=brought_by)
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
