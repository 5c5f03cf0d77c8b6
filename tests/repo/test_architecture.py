"""Imports go one way; the rules are in pyproject.toml, and this is where breaking one fails."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO


def test_every_rule_about_imports_is_kept() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout
