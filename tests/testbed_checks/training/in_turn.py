"""Training jobs one after another in one process, which imports torch once; it prints how each of them ended."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.training.checkpointed import main
from tests.testbed.training.checkpoints import RESUME_FROM

Job = tuple[Path | None, Sequence[str]]


def start_in_turn(jobs: Sequence[Job]) -> "subprocess.Popen[str]":
    """Start the jobs; their ends are lines of the standard output."""
    given = json.dumps([[str(path) if path else None, list(arguments)] for path, arguments in jobs])
    command = [sys.executable, "-m", "tests.testbed_checks.training.in_turn", given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _run(jobs: Sequence[tuple[str | None, Sequence[str]]]) -> None:
    for resume_from, arguments in jobs:
        os.environ[RESUME_FROM] = resume_from or ""
        try:
            main(arguments)
            print("done", flush=True)
        except SystemExit as error:
            print(error, flush=True)


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
