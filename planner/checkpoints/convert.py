"""Runs DeepSpeed's converter beside the planner's rounds, so that a job can restart on another layout.

The converter works in a folder of its own beside the checkpoint. Only what has ended well and was verified complete
gets the name that jobs load from, in one rename; so a finished conversion is used again, and what a planner that
died has left half done is thrown away.
"""

import os
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import BadInput
from planner.checkpoints.catalogue import ReadOptions, read_catalogue
from planner.checkpoints.checkpoint import Checkpoint
from planner.controllers.protocol import Report
from planner.controllers.running import Background, start_command

_MEASURE_NS = 10 * NS_PER_S  # between two looks at what is written: network file systems bear few
_LATE_NS = 2**62  # nobody writes any more to what is verified here, whatever the clock of the file server says
_LATEST = "latest_universal"  # DeepSpeed names in it what it loads without a tag
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu"}  # tensors are cut and joined in memory; the planner's host has no GPU


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be made from what, and by which command."""

    command: tuple[str, ...]
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion has come; with a report it is over."""

    message: str
    report: Report | None = None


@dataclass
class _Run:
    background: Background
    work: Path  # the folder in which the destination is made
    source_bytes: int
    measured_ns: int
    message: str


def find_conversion(decision: Decision) -> Conversion | None:
    """Return what a decision wants to be converted before its restart; None: nothing."""
    words = tuple(shlex.split((decision.resume or {}).get("convert", "")))
    if not words:
        return None
    return Conversion(words, _value_of("--input_folder", words), _value_of("--output_folder", words))


def find_obstacle(source: str, destination: str) -> str | None:
    """Return why this host cannot convert a checkpoint; None: it sees it, and may write beside it."""
    if not os.access(source, os.R_OK | os.X_OK):
        return f"the planner cannot see {source}, so it cannot convert it"
    beside = Path(destination).parent
    if not os.access(beside, os.W_OK | os.X_OK):
        return f"the planner may not write to {beside}, so it cannot convert {source}"
    return None


class Converter:
    """Makes universal checkpoints, each once; a conversion takes many rounds."""

    def __init__(self, timeout_s: float = 3600.0) -> None:
        self._timeout_s = timeout_s
        self._running: dict[str, _Run] = {}

    def is_running(self, wanted: Conversion) -> bool:
        """Tell whether the command is at work, or has ended and nobody has looked yet."""
        return wanted.destination in self._running

    def poll(self, wanted: Conversion, now_ns: int) -> Progress:
        """Begin a conversion, or see how far it has come."""
        run = self._running.get(wanted.destination)
        try:
            if run is None:
                return self._begin(wanted, now_ns)
            if not run.background.is_over(now_ns):
                return _measure(run, wanted, now_ns)
            return _over(self._finish(self._running.pop(wanted.destination), wanted))
        except OSError as error:
            return _over(Report("failed", f"{wanted.destination} cannot be made: {error.strerror or error}"))

    def forget(self, wanted: Conversion) -> None:
        """End a conversion that nobody wants any more, and throw away what it has made."""
        if (run := self._running.pop(wanted.destination, None)) is not None:
            run.background.finish()
            shutil.rmtree(run.work, ignore_errors=True)

    def _begin(self, wanted: Conversion, now_ns: int) -> Progress:
        made = Path(wanted.destination)
        if (found := _verify(made)) is not None:
            if found.state == "complete":
                return _over(Report("already", f"{found.path} was made before: {found.reason}"))
            # What we make has no such name before it is complete, so somebody else makes it.
            return _over(Report("refused", f"{found.path} is {found.state}, and not from here: {found.reason}"))
        if wanted.command[0].startswith("-"):
            return _over(Report("refused", "planner.converter is not set, so nothing is converted here"))
        if (obstacle := find_obstacle(wanted.source, wanted.destination)) is not None:
            return _over(Report("refused", obstacle))
        for half in made.parent.glob(f"{made.name}.*.partial"):
            shutil.rmtree(half, ignore_errors=True)  # one whose writer still lives fails, and is not missed
        work = Path(tempfile.mkdtemp(prefix=f"{made.name}.", suffix=".partial", dir=made.parent))
        words = [str(work / made.name) if word == wanted.destination else word for word in wanted.command]
        try:
            background = start_command(words, now_ns, self._timeout_s, _ENVIRONMENT)
        except BadInput as nonsense:
            work.rmdir()
            return _over(Report("refused", str(nonsense)))
        run = _Run(background, work, _count_bytes(Path(wanted.source)), now_ns, f"{wanted.source} is being converted")
        self._running[wanted.destination] = run
        return Progress(run.message)

    def _finish(self, run: _Run, wanted: Conversion) -> Report:
        """Return what came out of it; what is verified complete gets its name, and all else is thrown away."""
        ended = run.background.finish()
        made = run.work / Path(wanted.destination).name
        try:
            if ended.code is None:
                return Report("failed", f"the converter did not end within {self._timeout_s:.0f} s; {ended.message}")
            if not ended.is_good:
                return Report("failed", f"the converter failed with {ended.code}: {ended.message}")
            found = _verify(made)
            if found is None or found.state != "complete":
                message = f"what it made is {found.state}: {found.reason}" if found else "it made nothing"
                return Report("failed", f"the converter ended, and {message}")
            made.rename(wanted.destination)
            if (latest := run.work / _LATEST).is_file():
                latest.replace(Path(wanted.destination).parent / _LATEST)
            return Report("done", f"{wanted.source} was converted to {wanted.destination}: {found.reason}")
        finally:
            shutil.rmtree(run.work, ignore_errors=True)


def _value_of(option: str, words: tuple[str, ...]) -> str:
    index = words.index(option) + 1 if option in words else len(words)
    if index >= len(words):
        raise BadInput(f"the converter's command `{shlex.join(words)}` has no {option}")
    return words[index]


def _over(report: Report) -> Progress:
    return Progress(report.what, report)


def _verify(path: Path) -> Checkpoint | None:
    """Return the checkpoint at a path, whether it is complete included; None: none is there."""
    if not path.is_dir():
        return None
    found = read_catalogue(path, _LATE_NS, options=ReadOptions(quiet_s=0.0, most_depth=0)).checkpoints
    return next((each for each in found if each.path == str(path)), None)


def _measure(run: _Run, wanted: Conversion, now_ns: int) -> Progress:
    if now_ns - run.measured_ns >= _MEASURE_NS:
        # The slices of all ranks are written first, then the parameters that are merged from them.
        share = min(_count_bytes(run.work) / max(2 * run.source_bytes, 1), 0.9)
        run.message = f"{wanted.source} is being converted, about {int(share * 10) * 10} % is done"
        run.measured_ns = now_ns
    return Progress(run.message)


def _count_bytes(path: Path) -> int:
    return sum(_size_of(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)


def _size_of(file: Path) -> int:
    """Return how long a file is; nought where it is gone by now."""
    try:
        return file.stat().st_size
    except OSError:  # the converter removes slices as it goes, and a file server may then call them stale
        return 0
