"""The `lockstep` command in this process, with a state directory of its own and no settings of this machine."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cli.main import run
from tests.cli.commands import Outcome, Run, environment_for


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def lockstep(state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    def run_here(*arguments: object, **variables: str) -> Outcome:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name in os.environ:
                patch.delenv(name)
            for name, value in environment_for(state, **variables).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["lockstep", *map(str, arguments)])
            patch.setattr(sys.modules["__main__"], "__package__", None)  # else `python -m pytest` is our name
            with pytest.raises(SystemExit) as ended:
                run()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    yield run_here
    structlog.reset_defaults()  # commands send log lines to the standard error of their own time
