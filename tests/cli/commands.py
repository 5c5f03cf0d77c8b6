"""How tests run the `lockstep` command: in this process, which is quick, or as the process that people start."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
_LIMIT_S = 600


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def check_failure(outcome: Outcome, sentence: str, code: int = 1) -> None:
    """Check that a command failed with one sentence on standard error, said nothing else and showed no insides."""
    assert outcome.code == code, outcome
    assert sentence in outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    if code == 1:
        assert outcome.err.startswith("lockstep: ")
        assert outcome.err.count("\n") == 1, outcome.err


def environment_for(state: Path, **variables: str) -> dict[str, str]:
    """Return this process's environment without any setting of ours, and with those given."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    return others | {"LOCKSTEP_STATE_DIR": str(state), "LOCKSTEP_CONFIG": "/dev/null"} | variables


def run_process(*arguments: str, state: Path, **variables: str) -> Outcome:
    command, environment = [LOCKSTEP, *arguments], environment_for(state, **variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)
