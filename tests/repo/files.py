"""Which files the repository has, as git sees them: what is committed and what would be."""

import subprocess
from pathlib import Path

from tests.conftest import REPO

PACKAGES = ("lockstep", "collector", "importers", "simulator", "analyzer", "planner", "api", "cli")  # of the wheel


def repository_files() -> list[Path]:
    """Return every file that is not ignored, those not yet committed too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := REPO / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]
