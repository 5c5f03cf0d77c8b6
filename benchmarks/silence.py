"""What step times of strangers cost in alerts, and which slowdowns put into them are found, beside simple rules.

Nobody labelled the public runs, so every alert in them counts as one, though some are right. Runs are split by the
name of their system and case: repeats of a run are much alike, and are in one half. Thresholds were chosen on the
tuning half only; the scoring half is for the figures.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow.parquet as pq

from analyzer.diagnosis import judge_step_rows
from analyzer.verdicts import GradingOptions
from analyzer.windows.jobs import JobSpan, Roster
from benchmarks.figures import Figure, Note
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME

DATA = "LOCKSTEP_PUBLIC_DATA"
HALVES = ("tuning", "scoring")
_CORPORA = {"steptimes_mlperf50": (0.3, 0.05), "steptimes_megatron": (4.0, 1.0)}  # alerts per 10,000: floor and goal
_FOUND_FLOOR = 0.98
_LENGTHS = (10, 20)  # steps of a slowdown that is put in
_BEFORE, _AFTER = 15, 5  # steps that are left alone before and behind it
_QUIET = 0.03  # of the step time: in noisier runs ten steps do not show a tenth
_SEED = 20  # of the places of slowdowns; tuning used others
_QUICK = 10  # every so manieth run is taken

Detector = Callable[[np.ndarray], list[int]]  # step times in, first steps of alerts out


@dataclass(frozen=True)
class Run:
    """The step times of a job that somebody published."""

    name: str
    seconds: np.ndarray

    @property
    def half(self) -> str:
        system = self.name.rpartition("/")[0]
        return HALVES[hashlib.sha256(system.encode()).digest()[0] & 1]

    @property
    def noise(self) -> float:
        """Return how far steps are from those around them, as a share."""
        value = np.log(self.seconds)
        return 1.4826 * float(np.median(np.abs(np.diff(value))) / np.sqrt(2))


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return alerts and found slowdowns of both corpora, by half."""
    figures: list[Figure] = []
    for corpus, (floor, goal) in _CORPORA.items():
        runs = read_runs(_find_data() / corpus)[:: _QUICK if quick else 1]
        for half in HALVES:
            some = [run for run in runs if run.half == half]
            name = f"{corpus.removeprefix('steptimes_')}, {half} half"
            note(f"{name}: {len(some)} runs")
            figures += [_count_alerts(name, some, floor, goal), *_count_found(name, some)]
    return tuple(figures)


def _find_data() -> Path:
    if DATA not in os.environ:
        raise BadInput(f"{DATA} does not name the folder with public data: no step times to judge")
    return Path(os.environ[DATA])


def read_runs(folder: Path) -> list[Run]:
    """Return the runs of a corpus, in the order of their names."""
    table = pq.read_table(folder / "steps.parquet", columns=["run", "seconds"])
    names = np.asarray(table["run"].combine_chunks().to_numpy(zero_copy_only=False))
    seconds = table["seconds"].to_numpy()
    order = np.argsort(names, kind="stable")
    found, firsts = np.unique(names[order], return_index=True)
    return [Run(str(name), part) for name, part in zip(found, np.split(seconds[order], firsts[1:]), strict=True)]


def find_grades(seconds: np.ndarray) -> list[tuple[int, str]]:
    """Return the first step and the grade of each incident that the analyzer makes of these step times."""
    end_ns = (np.cumsum(seconds) * NS_PER_S).astype(np.int64)
    start_ns = np.append(0, end_ns[:-1])
    columns = {"job": "j", "step": np.arange(len(seconds)), "start_ns": start_ns, "end_ns": end_ns, "source": "told"}
    rows = fill_rows(TABLE_BY_NAME["steps"], len(seconds), {"host": "h", "attempt": 0, "world_rank": 0} | columns)
    span = JobSpan("j", 0, 0, int(end_ns[-1]), frozenset({"steps"}))
    incidents = judge_step_rows(rows, span, Roster.empty(), GradingOptions())
    verdicts = [incident.verdict for incident in incidents]
    return [(int(np.searchsorted(start_ns, verdict.since_ns)), verdict.grade) for verdict in verdicts]


def find_alerts(seconds: np.ndarray) -> list[int]:
    """Return the first steps of what the analyzer would wake somebody for."""
    return [step for step, grade in find_grades(seconds) if grade != "note"]


def apply_rule(seconds: np.ndarray) -> list[int]:
    """Return where three steps in a row are five median deviations above the 50 before; a run of them is one."""
    windows = np.lib.stride_tricks.sliding_window_view(seconds, 50)[:-1] if len(seconds) > 50 else np.zeros((0, 50))
    middle = np.median(windows, axis=1)
    limit = middle + 5 * np.median(np.abs(windows - middle[:, None]), axis=1)
    above = np.append(np.zeros(len(seconds) - len(limit), bool), seconds[len(seconds) - len(limit) :] > limit)
    edges = np.flatnonzero(np.diff(above, prepend=False, append=False)).reshape(-1, 2)
    return [int(begin) for begin, end in edges if end - begin >= 3]


def apply_page_hinkley(seconds: np.ndarray, slack: float = 0.02, limit: float = 0.5) -> list[int]:
    """Return where Page's cumulative sum of logarithms says that steps became longer, by six steps of a tenth."""
    alarms, total, least, known = [], 0.0, 0.0, 0.0
    count = 0
    for step, value in enumerate(np.log(seconds).tolist()):
        count += 1
        known += (value - known) / count
        total += value - known - slack
        least = min(least, total)
        if total - least > limit and count > 10:
            alarms.append(step)
            total = least = known = 0.0
            count = 0
    return alarms


PEERS: Mapping[str, Detector] = {"five MADs, three in a row": apply_rule, "Page-Hinkley": apply_page_hinkley}


def _count_alerts(name: str, runs: Sequence[Run], floor: float, goal: float) -> Figure:
    records = sum(len(run.seconds) for run in runs)
    grades = [grade for run in runs for _, grade in find_grades(run.seconds)]
    alerts = sum(grade != "note" for grade in grades)
    peers = [
        f"{peer}: {1e4 * sum(len(find(run.seconds)) for run in runs) / records:.3g}" for peer, find in PEERS.items()
    ]
    beside = [f"{alerts} in {records:,} records", f"{grades.count('note')} notes", *peers]
    beside.append(f"{grades.count('isolate')} would isolate")
    return Figure(f"{name}: alerts", 1e4 * alerts / records, "/10,000", floor, goal, False, "; ".join(beside))


def _count_found(name: str, runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield the shares of slowdowns found; the floor is for a tenth in runs quiet enough to show it."""
    for amount in (1.1, 1.2):
        quiet = [run for run in runs if run.noise <= _QUIET]
        share = mean(_try(quiet, amount, find_alerts))
        peers = [f"{peer}: {mean(_try(quiet, amount, find)):.3f}" for peer, find in PEERS.items()]
        everywhere = f"in all {len(runs)} runs: {mean(_try(runs, amount, find_alerts)):.3f}"
        beside = "; ".join([f"{len(quiet)} quiet runs", everywhere, *peers])
        floor = _FOUND_FLOOR if amount == 1.1 else None
        yield Figure(f"{name}: slowdowns of {amount - 1:.0%} found", share, "share", floor, None, True, beside)


def _try(runs: Sequence[Run], amount: float, find: Detector) -> list[bool]:
    """Return for each slowdown that is put into a run whether it is found where there was none before."""
    random = np.random.default_rng(_SEED)
    tried = []
    for run in runs:
        known = find(run.seconds)
        for length in _LENGTHS:
            starts = np.arange(_BEFORE, len(run.seconds) - length - _AFTER)
            free = [start for start in starts if not any(abs(start - at) < length + _BEFORE for at in known)]
            if not free:
                continue
            start = int(random.choice(free))
            slowed = run.seconds.copy()
            slowed[start : start + length] *= amount
            tried.append(any(start - 5 <= at < start + length for at in find(slowed)))
    return tried
