"""When step times changed for good: one step time in, an alarm out, in a few microseconds.

Step times are heavy-tailed: checkpoints, garbage collection and unlucky steps are several times as long and mean
nothing. A change of level is different in one way only: it stays. So each step is compared with the median of its
level, in units of how far steps of this job usually are from the median of theirs (both of logarithms, so that a
tenth is a tenth at any length). Steps that are off to one side are held back as an excursion. It becomes a new level
once enough of it is far enough off; when steps come back first, it was noise and joins the old level.

How far is enough falls with the length of the excursion: three steps in a row beyond 2.8 deviations come by chance
once in many thousand, even where one step in fifty is an outlier, and in a longer excursion the lower quarter has to
be off, so that single usual steps in between do not reset it. A level is never new for less than 7 %: nobody
acts on that. And where steps were never so short before, more is asked for: jobs recover, they do not improve.

Cost: O(log kept steps) per step, no arrays. References: sequential change detection with verification as in Greyhound
(ATC'25, at least 10 % for some iterations); the median and the median deviation bear up to half of outliers.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

LEVEL_STEPS = 40  # that a level remembers: its median is known to a fifth of a deviation, and drift is followed
NOISE_STEPS = 100  # whose distance from their level says how noisy the job is
FIRST_STEPS = 10  # before anything is said: fewer tell neither a level nor its noise
SETTLING_STEPS = 8  # after a change in which going on in the same direction is the same change: a ramp is one
CAUTION = 5  # steps whose worth of doubt is added to the noise: half as much again after the first ten
NORMAL = 1.4826  # deviations in a median distance, were the noise normal
NORMAL_FIFTH = 0.7803  # deviations in the distance that a fifth exceeds: some jobs have two kinds of steps
TWO_KINDS = 2.0  # times as noisy as the middle says: too much for one kind of steps with outliers
BURST_STEPS = 300  # for which it is remembered how long an excursion was that came and went
OUTLYING = 2.0  # times as far off as the middle of an excursion: no part of the new level, but an outlier in it
FAR = 4.0  # deviations between two levels whose steps are not mistaken for each other
NEAR = 0.2  # of the change: steps of a new level are this near each other
MANY = 6  # steps of an excursion, of which one may be anything
RUNS = (3, 4, 6, 9, 14, 20)  # of the newest steps that are tried; an excursion without a verdict after 20 is noise


@dataclass(frozen=True, slots=True)
class ClockOptions:
    """When a change is one."""

    least_change: float = 0.07  # of the step time; true changes of a tenth look as small as this when they begin
    fewest_steps: int = 3  # one is an outlier, two are a checkpoint and what it left behind
    deviations: float = 2.8  # that three steps in a row have to be off, each
    never_so_fast: float = 1.0  # deviations more where steps were never so short: jobs recover, they do not improve
    least_deviations: float = 1.3  # that the lower quarter of a long excursion has to be off
    least_noise: float = 0.003  # of the step time: quieter series are quantised, not quiet


@dataclass(frozen=True, slots=True)
class Change:
    """A level that began with a step."""

    step: int  # number of the first step of the new level, counted from the clock's first one
    detected_at: int  # number of the step with which it became certain
    before: float  # step time of the level before, in the unit of the input
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass(slots=True)
class _Sorted:
    """The last values of a series, with their median at hand."""

    most: int
    recent: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.recent.append(value)
        insort(self.ordered, value)
        if len(self.recent) > self.most:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def median(self) -> float:
        half = len(self.ordered) // 2
        return self.ordered[half] if len(self.ordered) % 2 else (self.ordered[half - 1] + self.ordered[half]) / 2


class StepClock:
    """Follows the step times of one job."""

    def __init__(self, options: ClockOptions | None = None) -> None:
        self.options = options or ClockOptions()
        self.steps = 0
        self.change: Change | None = None  # the newest
        self._level = _Sorted(LEVEL_STEPS)
        self._noise = _Sorted(NOISE_STEPS)
        self._above = _Sorted(NOISE_STEPS // 2)  # of these, the distances of longer steps: tails are on that side
        self._held: list[float] = []  # the excursion, in order
        self._back = 0  # usual steps at its end
        self._centre = 0.0  # median of the level, of logarithms
        self._floor = math.inf  # lowest of the levels before
        self._deviation = self.options.least_noise
        self._bursts: deque[tuple[int, int, float]] = deque()  # changes that came and went: step, length and size
        self._least = math.log1p(self.options.least_change)

    @property
    def level(self) -> float | None:
        """Return the step time that holds now; None before the first."""
        return math.exp(self._centre) if self.steps else None

    @property
    def noise(self) -> float:
        """Return how far steps usually are from their level, as a share."""
        return self._deviation

    def observe(self, step_time: float) -> Change | None:
        """Take the next step time; return a change when this step made it certain."""
        number = self.steps
        if not 0.0 < step_time < math.inf:  # also what is no number
            return None
        self.steps += 1
        value = math.log(step_time)
        if number < FIRST_STEPS:
            self._learn(value)
            return None
        off = value - self._centre
        slack = max(self._deviation, self.options.least_change / 2)
        if not self._held:
            if -slack < off < slack:
                self._take(value, off)
                return None
            self._held.append(value)
            return None
        return self._follow(value, off, slack)

    def _follow(self, value: float, off: float, slack: float) -> Change | None:
        """Go on with an excursion: it ends, it goes on, or it is a change."""
        upwards = self._held[0] > self._centre
        outwards = off if upwards else -off
        if outwards < slack:
            self._leave_excursion(value, outwards <= -slack)
            return None
        self._held.append(value)
        self._back = 0
        for steps in RUNS:
            if steps <= len(self._held) and (new := self._find_new(self._held[-steps:])):
                return self._begin_level(new)
        if len(self._held) >= RUNS[-1]:
            self._give_up()
        return None

    def _leave_excursion(self, value: float, is_beyond: bool) -> None:
        """Take a step that does not go on with the excursion: usual, or `is_beyond`, off to the other side."""
        self._back += 1
        if self._back >= 2 or (is_beyond and len(self._held) == 1):
            self._give_up()
            if is_beyond:
                self._held.append(value)
                return
        if self._held and not is_beyond:
            self._held.append(value)
        else:  # one long step among shorter ones is an outlier, and no reason to forget them
            self._take(value, value - self._centre)

    def _find_fewest(self, size: float) -> int:
        """Return how many steps a change of a size needs: more than what came and went of late; once is chance."""
        while self._bursts and self._bursts[0][0] < self.steps - BURST_STEPS:
            self._bursts.popleft()
        alike = [length for _, length, known in self._bursts if 2 * known > size]
        return 1 + max(alike) if len(alike) > 1 else self.options.fewest_steps

    def _find_new(self, held: list[float]) -> list[float] | None:
        """Return the steps of an excursion that make a new level, without the outliers among them."""
        options = self.options
        doubt = self._deviation * math.sqrt(1 + 2 / len(self._level.ordered))
        if held[-1] > self._centre and len(self._above.ordered) >= FIRST_STEPS:
            doubt *= max(1.0, NORMAL * self._above.median() / self._deviation)
        distances = sorted(abs(value - self._centre) for value in held)
        limit = OUTLYING * distances[(len(distances) - 1) // 2] + options.deviations * doubt
        near = bisect_left(distances, limit)
        if near < options.fewest_steps or distances[near // 2] < self._least:
            return None
        if self._bursts and near < self._find_fewest(distances[near // 2]):
            return None
        needed = max(options.deviations * math.sqrt(options.fewest_steps / near), options.least_deviations)
        if (
            held[-1] < self._centre
            and self._centre - distances[near // 2] < min(self._floor, self._centre) - self._least
        ):
            needed += options.never_so_fast
        if distances[near // 4] < needed * doubt or not _agree(distances[:near], doubt, _is_ramp(held)):
            return None
        return [value for value in held if abs(value - self._centre) < limit]

    def _begin_level(self, new: list[float]) -> Change | None:
        """Begin a new level with the excursion."""
        before = self._centre
        self._floor = min(self._floor, before)
        began = self.steps - len(self._held) + self._held.index(new[0])
        self._level = _Sorted(LEVEL_STEPS)
        for value in new:
            self._level.add(value)
        self._held, self._back = [], 0
        self._centre = self._level.median()
        change = Change(began, self.steps - 1, math.exp(before), math.exp(self._centre))
        last, self.change = self.change, change
        if last and began - last.detected_at <= SETTLING_STEPS:
            if (last.ratio > 1) == (change.ratio > 1):
                return None  # the same change, still going on
            if abs(math.log(change.after / last.before)) < NEAR * abs(math.log(last.ratio)):
                self._bursts.append((self.steps, began - last.step, abs(math.log(last.ratio))))
        return change

    def _give_up(self) -> None:
        held, self._held, self._back = self._held, [], 0
        for value in held:
            self._take(value, value - self._centre)

    def _take(self, value: float, off: float) -> None:
        self._level.add(value)
        self._noise.add(abs(off))
        if off > 0:
            self._above.add(off)
        self._centre = self._level.median()
        self._judge_noise()

    def _judge_noise(self) -> None:
        """Work out how far off steps usually are; few distances say little, so they count for more than they show."""
        distances = self._noise.ordered
        middle, upper = self._noise.median() * NORMAL, distances[len(distances) * 4 // 5] * NORMAL_FIFTH
        known = upper if upper > TWO_KINDS * middle else middle
        self._deviation = max(known * (1 + CAUTION / len(distances)), self.options.least_noise)

    def _learn(self, value: float) -> None:
        """Take one of the first steps; when they are complete, their distances from their median are the noise."""
        self._level.add(value)
        self._centre = self._level.median()
        if self.steps == FIRST_STEPS:
            for known in self._level.recent:
                self._noise.add(abs(known - self._centre))
            self._judge_noise()


def _agree(distances: list[float], doubt: float, is_ramp: bool) -> bool:
    """Return whether steps so far off, in order, can be of one level.

    Where the new level is far from the old one, no step of it looks usual. The few steps of a short excursion are
    near each other, or each is further off than the one before, unlike outliers that happen to follow each other.
    """
    few, middle = len(distances) < MANY, distances[len(distances) // 2]
    if middle > FAR * doubt and distances[0 if few else 1] < middle / 2:
        return False
    return is_ramp or not few or distances[-1] - distances[len(distances) // 4] <= max(FAR * doubt, NEAR * middle)


def _is_ramp(steps: list[float]) -> bool:
    rising = steps[-1] > steps[0]
    return all((after > before) == rising for before, after in pairwise(steps))
