"""Step times as large jobs have them: heavy-tailed, with outliers, checkpoints and drift, and levels that change."""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 6  # steps between a true change and an alarm that still belong together, as other detectors are scored


@dataclass(frozen=True)
class Shape:
    """What a series is made of; shares are of the step time."""

    noise: float = 0.02
    tail: float = 4.0  # degrees of freedom of Student's t; large: normal
    correlation: float = 0.0  # of a step's noise with that of the one before
    outliers: float = 0.0  # share of steps that are up to ten times as long
    checkpoint_every: int = 0  # steps
    drift: float = 0.0  # over the whole series
    ramp: int = 0  # steps that a change takes
    levels: tuple[float, ...] = ()  # of the slow stretches, times the usual
    usual: tuple[int, int] = (30, 120)  # steps between slow stretches, at least and at most
    slow: tuple[int, int] = (15, 80)  # steps of a slow stretch


@dataclass(frozen=True)
class Series:
    """Step times in seconds, and where their level truly changes."""

    times: np.ndarray
    changes: tuple[int, ...]


def make_series(shape: Shape, seed: int) -> Series:
    """Return a series with one slow stretch after the other, some of which follow each other directly."""
    random = np.random.default_rng(seed)
    level, changes = _draw_levels(shape, random)
    steps = len(level)
    noise = random.standard_t(shape.tail, steps) / np.sqrt(shape.tail / (shape.tail - 2))
    for step in range(1, steps):
        noise[step] = shape.correlation * noise[step - 1] + np.sqrt(1 - shape.correlation**2) * noise[step]
    times = level * np.maximum(1 + shape.noise * noise, 0.3) * np.linspace(1, 1 + shape.drift, steps)
    times *= np.where(random.random(steps) < shape.outliers, random.uniform(1.3, 10, steps), 1)
    if shape.checkpoint_every:
        times[shape.checkpoint_every :: shape.checkpoint_every] *= random.uniform(1.5, 8)
    return Series(1.7 * times, tuple(changes))


def _draw_levels(shape: Shape, random: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    parts, changes = [np.ones(int(random.integers(*shape.usual)))], []
    for index, level in enumerate(shape.levels):
        changes.append(sum(map(len, parts)))
        parts.append(_reach(parts[-1][-1], level, int(random.integers(*shape.slow)), shape.ramp))
        follows = index + 1 < len(shape.levels) and random.random() < 0.3 and shape.levels[index + 1] != level
        if not follows:
            changes.append(sum(map(len, parts)))
            parts.append(_reach(level, 1.0, int(random.integers(*shape.usual)), shape.ramp))
    return np.concatenate(parts), changes


def _reach(begin: float, end: float, steps: int, ramp: int) -> np.ndarray:
    way = np.linspace(begin, end, ramp + 2)[1:-1]
    return np.concatenate([way, np.full(max(steps - ramp, 1), end)])


def draw_shape(seed: int) -> Shape:
    """Return a shape at random; every change is a tenth and three deviations at least."""
    random = np.random.default_rng([seed, 1])
    noise = float(np.exp(random.uniform(np.log(0.003), np.log(0.08))))
    least = max(0.1, 3 * noise)
    levels = [1 + float(np.exp(random.uniform(np.log(least), np.log(3)))) for _ in range(int(random.integers(3, 10)))]
    for index in range(1, len(levels)):
        while abs(levels[index] / levels[index - 1] - 1) < least + 0.05:
            levels[index] = 1 + float(np.exp(random.uniform(np.log(least), np.log(3))))
    return Shape(
        noise=noise,
        tail=float(random.choice([3.0, 4.0, 30.0])),
        correlation=float(random.choice([0.0, 0.0, 0.3])),
        outliers=float(random.choice([0.0, 0.01, 0.04])),
        checkpoint_every=int(random.choice([0, 0, 10, 50])),
        drift=float(random.choice([0.0, 0.0, 0.05])),
        ramp=int(random.choice([0, 0, 1, 3])),
        levels=tuple(levels),
    )


@dataclass
class Score:
    """How many alarms were right, how many changes were found, and how late."""

    alarms: int = 0
    right: int = 0
    true: int = 0
    delays: tuple[int, ...] = ()

    @property
    def precision(self) -> float:
        return self.right / self.alarms if self.alarms else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0

    def add(self, changes: tuple[int, ...], alarms: list[int]) -> None:
        """Count one series; each true change pairs with one alarm at most."""
        free = list(alarms)
        for change in changes:
            near = [alarm for alarm in free if -TOLERANCE <= alarm - change <= TOLERANCE]
            if near:
                free.remove(near[0])
                self.right += 1
                self.delays += (near[0] - change,)
        self.alarms += len(alarms)
        self.true += len(changes)
