"""Slurm's commands as small scripts that say what they are told to say, and note how they were called."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from planner.controllers.slurm_commands import SlurmOptions

_DATA = Path(__file__).parents[2] / "data" / "slurm"
NODES = (_DATA / "nodes.txt").read_text().splitlines(keepends=True)
RUNNING = (_DATA / "job_running.txt").read_text()
SCRIPT = (_DATA / "batch_script.txt").read_text()
_TOOLS = ("scontrol", "sbatch", "scancel", "squeue")
_SCRIPT = """\
#!/bin/sh
cd {home} || exit 99
tool=$(basename "$0")
if [ "$1" != --test-only ]; then printf '%s\\n' "$tool $*" >> calls; fi
case $tool-$1 in
    sbatch---test-only) key=sbatch-test ;;
    scontrol-show|scontrol-write) key=$tool-$1-$2 ;;
    scontrol-*) key=$tool-$1 ;;
    *) key=$tool ;;
esac
if [ -e "$key.do" ]; then . "./$key.do"; fi
if [ -e "$key.err" ]; then cat "$key.err" >&2; fi
if [ -e "$key.out" ]; then cat "$key.out"; fi
if [ -e "$key.rc" ]; then exit "$(cat "$key.rc")"; fi
"""


@dataclass(frozen=True)
class FakeSlurm:
    """Commands in a directory; what nobody told them to say, they pass over in silence."""

    home: Path

    def install(self) -> "FakeSlurm":
        self.home.mkdir()
        for tool in _TOOLS:
            path = self.home / tool
            path.write_text(_SCRIPT.format(home=shlex.quote(str(self.home))))
            path.chmod(0o755)
        return self

    def say(self, key: str, out: str = "", err: str = "", code: int = 0, do: str = "") -> None:
        """Tell a command what to print, how to end, and what to do first; the key is such as `scontrol-show-node`."""
        for suffix, text in (("out", out), ("err", err), ("rc", str(code)), ("do", do)):
            (self.home / f"{key}.{suffix}").write_text(text)

    def calls(self, tool: str = "") -> list[str]:
        """Return how the commands, or one of them, were called."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(tool)]

    def changes(self) -> list[str]:
        """Return the calls that change something."""
        return [line for line in self.calls() if not line.startswith(("squeue", "scontrol show", "scontrol write"))]

    def options(self, is_dry_run: bool = False, timeout_s: float = 60.0) -> SlurmOptions:
        return SlurmOptions(
            self.home / "spool",
            is_dry_run=is_dry_run,
            timeout_s=timeout_s,
            scontrol=str(self.home / "scontrol"),
            sbatch=str(self.home / "sbatch"),
            scancel=str(self.home / "scancel"),
            squeue=str(self.home / "squeue"),
        )
