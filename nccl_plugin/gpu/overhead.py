"""What a plugin costs, told by copies of NCCL side by side in one process, each with another plugin or none.

Two processes never run alike, not even without a plugin: a few percent lie between them. So every round visits all
configurations within a second, each time in another order, and compares within the round. Neither do two
communicators, and one used a moment ago is faster. So there are two comparisons. Beside: every copy of NCCL
is visited once a round and compared with two copies without a plugin, which also tell how far apart equal things are.
Levels: those of our plugin on one communicator, switched through the control page and compared with `off` there.
"""

import random
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab import PLUGIN, Lab, Outcome, Run, lockstep_side, side_word
from rings import LEVELS

CALLS_BY_BYTES = {8: 600, 1 << 20: 30, 64 << 20: 1}  # each about 15 to 25 ms on an H200 over loopback
FULL_SHARE = 65536
RESAMPLES = 2000
BASELINE, CONTROL = "no plugin", "no plugin again"

# The example asks for what our level `transfers` with kernel times asks for. One collective of its pool takes 755 MB
# of address space, so that the default of 256 is refused by most machines; it drops what finds no place.
FOREIGN_SETTINGS: dict[str, dict[str, str]] = {
    "example": {
        "NCCL_PROFILE_EVENT_MASK": str(0x4E),
        "NCCL_PROFILE_COLL_POOL_SIZE": "64",
        "NCCL_PROFILE_P2P_POOL_SIZE": "8",
    },
    "inspector": {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000"},
}

Item = TypeVar("Item")
Samples = dict[int, dict[str, list[float]]]  # by bytes and configuration: microseconds, one per round


@dataclass(frozen=True)
class Side:
    """A copy of NCCL and what it loads."""

    name: str
    plugin: Path | None
    settings: Mapping[str, str]
    is_ours: bool = False

    def word(self, library: Path, rank: int, folder: Path) -> str:
        if self.is_ours and self.plugin is not None:
            return lockstep_side(self.name, str(library), folder, rank, self.settings, self.plugin)
        return side_word(self.name, str(library), str(self.plugin or "none"), self.settings)


@dataclass(frozen=True)
class Configuration:
    """A row of the table."""

    label: str
    side: str
    level: str = "off"
    share: float = 1  # of operations whose steps are recorded

    def words(self) -> list[str]:
        timed = [f"time={size}:{calls}" for size, calls in CALLS_BY_BYTES.items()]
        return [f"use={self.side}", f"level={LEVELS.index(self.level)}:{int(self.share * FULL_SHARE)}", *timed]


@dataclass(frozen=True)
class Experiment:
    """What is compared with the mean of what."""

    title: str
    sides: Sequence[Side]
    configurations: Sequence[Configuration]
    baselines: Sequence[str]  # labels; the first one's times are printed


@dataclass(frozen=True)
class Interval:
    """A median with the interval that holds it in 95 of 100 resamples."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median * 100:+.1f} [{self.low * 100:+.1f}, {self.high * 100:+.1f}]"


def plan_beside(copies: Path, foreign: Mapping[str, Path]) -> Experiment:
    """Our plugin with more and less detail, and other plugins that were built, each in a copy of NCCL of its own."""
    levels = (
        Configuration("off", "off"),
        Configuration("transfers", "transfers", "transfers"),
        Configuration("1 % of steps (default)", "default", "steps", 0.01),
        Configuration("1 % of steps + KernelCh", "kernel", "steps", 0.01),
    )
    sides = [Side("none", None, {}), Side("plain", None, {})]
    sides += [_our_side(copies, each.side, kernel="on" if each.side == "kernel" else "off") for each in levels]
    sides += [Side(name, path, FOREIGN_SETTINGS.get(name, {})) for name, path in foreign.items()]
    configurations = [Configuration(BASELINE, "none"), Configuration(CONTROL, "plain"), *levels]
    configurations += [Configuration(f"NVIDIA's {name}", name) for name in foreign]
    return Experiment("against no plugin", sides, configurations, (BASELINE, CONTROL))


def plan_levels(copies: Path, kernel: str) -> Experiment:
    """Every level of ours on one communicator, with or without kernel times."""
    configurations = [Configuration(level, "levels", level) for level in LEVELS]
    configurations.append(Configuration("1 % of steps", "levels", "steps", 0.01))
    title = f"against off, same communicator, KernelCh {kernel}"
    return Experiment(title, [_our_side(copies, "levels", kernel)], configurations, ("off",))


def _our_side(copies: Path, name: str, kernel: str) -> Side:
    plugin = copies / f"{name}-liblockstep-nccl.so"  # another file is another plugin to the loader
    shutil.copyfile(PLUGIN, plugin)
    settings = {"LOCKSTEP_BUDGET": "0", "LOCKSTEP_SAMPLE": "1", "LOCKSTEP_KERNEL": kernel}
    return Side(name, plugin, settings, is_ours=True)


def words_of(
    experiment: Experiment, libraries: Mapping[str, Path], rank: int, folder: Path, pair: int, rounds: int
) -> list[str]:
    """Opens the sides, each time in another order, and visits the configurations round after round."""
    sides = _shuffled(experiment.sides, pair)
    words = [side.word(libraries[side.name], rank, folder) for side in sides]
    for configurations in orders_of(experiment, pair, rounds):
        words += [word for configuration in configurations for word in configuration.words()]
    return words


def orders_of(experiment: Experiment, pair: int, rounds: int) -> list[list[Configuration]]:
    """In which order each round visits the configurations: the same on all ranks."""
    return [_shuffled(experiment.configurations, 1000 * pair + number) for number in range(rounds)]


def _shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    return random.Random(seed).sample(items, len(items))  # noqa: S311 -- an order that every rank can repeat


def measure(lab: Lab, library: str, experiment: Experiment, pair: int, rounds: int) -> tuple[Outcome, Samples]:
    """One pair of processes: the samples of its rounds but the first, which warms up; none if it did not finish."""
    libraries = copy_libraries(lab.folder, library, [side.name for side in experiment.sides])

    def words(rank: int, folder: Path) -> list[str]:
        return words_of(experiment, libraries, rank, folder, pair, rounds)

    settings = {"NCCL_INSPECTOR_DUMP_DIR": str(lab.folder / "inspector")}
    outcome = lab.run(Run(f"overhead-{pair}", 2, words, environment=settings, pinned=True, timeout_s=100))
    visits = rounds * len(experiment.configurations) * len(CALLS_BY_BYTES)
    finished = all(sum("us" in line for line in of_rank) == visits for of_rank in outcome.lines)
    return outcome, collect_samples(outcome.lines, orders_of(experiment, pair, rounds)) if finished else {}


def copy_libraries(folder: Path, library: str, names: Iterable[str]) -> dict[str, Path]:
    """A file for every copy of NCCL: the loader knows files by their number, not by what is in them."""
    copies = {}
    for name in names:
        copies[name] = folder / "copies" / Path(library).parent.name / name / "libnccl.so.2"
        if not copies[name].exists():
            copies[name].parent.mkdir(parents=True)
            shutil.copyfile(library, copies[name])
    return copies


def collect_samples(
    lines: Sequence[Sequence[Mapping[str, object]]], orders: Sequence[Sequence[Configuration]]
) -> Samples:
    """The slowest rank's time of every visit, by size and configuration, without the first round."""
    timed = [[line for line in of_rank if "us" in line] for of_rank in lines]
    planned = [
        (number, each, size) for number, order in enumerate(orders) for each in order for size in CALLS_BY_BYTES
    ]
    samples: Samples = {size: {each.label: [] for each in orders[0]} for size in CALLS_BY_BYTES}
    for (number, configuration, size), *same_timestamp in zip(planned, *timed, strict=True):
        assert {(line["side"], line["bytes"]) for line in same_timestamp} == {(configuration.side, size)}
        if number > 0:
            samples[size][configuration.label].append(max(float(str(line["us"])) for line in same_timestamp))
    return samples


def paired_ratios(of_configuration: Sequence[float], of_baselines: Sequence[Sequence[float]]) -> list[float]:
    """How much longer each round took than the mean of its baselines: 0.01 is one percent."""
    means = [statistics.fmean(same_round) for same_round in zip(*of_baselines, strict=True)]
    return [mine / mean - 1 for mine, mean in zip(of_configuration, means, strict=True)]


def interval_of(ratios_by_process: Sequence[Sequence[float]]) -> Interval:
    """The median over all rounds. Processes are drawn again, then their rounds: those of one process are alike."""
    generator = random.Random(1)  # noqa: S311 -- resampling
    medians = []
    for _ in range(RESAMPLES):
        drawn = generator.choices(ratios_by_process, k=len(ratios_by_process))
        again = [generator.choices(rounds, k=len(rounds)) for rounds in drawn]
        medians.append(statistics.median(value for rounds in again for value in rounds))
    cuts = statistics.quantiles(medians, n=40)
    return Interval(statistics.median(value for rounds in ratios_by_process for value in rounds), cuts[0], cuts[-1])


def table_of(experiment: Experiment, processes: Sequence[Samples]) -> str:
    """The table for people, in Markdown: percent more time than the baselines, median and 95 % interval."""
    first = experiment.baselines[0]
    absolute = [
        statistics.median(value for each in processes for value in each[size][first]) for size in CALLS_BY_BYTES
    ]
    rows = [[experiment.title, *(_size(size) for size in CALLS_BY_BYTES)], ["---"] * (1 + len(CALLS_BY_BYTES))]
    rows.append([first, *(f"{us:.1f} us" for us in absolute)])
    rows += [
        _row(processes, each.label, experiment.baselines) for each in experiment.configurations if each.label != first
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(processes: Sequence[Samples], label: str, baselines: Sequence[str]) -> list[str]:
    others = [name for name in baselines if name != label]
    cells = [label]
    for size in CALLS_BY_BYTES:
        by_process = [paired_ratios(each[size][label], [each[size][name] for name in others]) for each in processes]
        cells.append(str(interval_of(by_process)))
    return cells


def _size(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size >> 20} MiB"
