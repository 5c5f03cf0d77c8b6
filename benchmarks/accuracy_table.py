"""Figures of many scored runs: precision, recall, false alarms with their bound, calibration, time to detect."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scipy.stats import chi2

from benchmarks.accuracy_reliability import interval, percent, show_reliability
from benchmarks.accuracy_score import SEEDS_OF_SIZE, Group, Hit, Named, Score
from benchmarks.figures import Figure

_S_PER_HOUR = 3_600.0


@dataclass(frozen=True)
class Tally:
    """What a set of runs adds up to."""

    scores: Sequence[Score]

    @property
    def hits(self) -> list[Hit]:
        """Verdicts on parts that did break, late ones included."""
        return [hit for score in self.scores for hit in score.hits]

    @property
    def found(self) -> list[Hit]:
        """Those of them that came in time."""
        return [hit for hit in self.hits if hit.in_time]

    @property
    def faults(self) -> int:
        return sum(len(score.hits) + len(score.missed) for score in self.scores)

    @property
    def wrong(self) -> list[Named]:
        """Verdicts on parts that are well, whether anything else was broken or not."""
        return [named for score in self.scores for named in (*score.wrong, *score.alarms)]

    @property
    def recall(self) -> float:
        return percent(len(self.found), self.faults)

    @property
    def class_recall(self) -> float:
        return percent(sum(hit.class_right for hit in self.found), self.faults)

    @property
    def side_right(self) -> float:
        """Of the verdicts on a fault with a side, in percent."""
        judged = [hit.side_right for hit in self.hits if hit.side_right is not None]
        return percent(sum(judged), len(judged))

    @property
    def precision(self) -> float:
        return percent(len(self.hits), len(self.hits) + len(self.wrong))

    @property
    def ambiguous(self) -> float:
        """Share of verdicts on a fault that name others as equally likely, in percent."""
        return percent(sum(bool(hit.named.ambiguous_with) for hit in self.hits), len(self.hits))

    @property
    def alarms(self) -> int:
        return sum(len(score.alarms) for score in self.scores)

    @property
    def healthy_hours(self) -> float:
        return sum(score.healthy_s for score in self.scores) / _S_PER_HOUR

    @property
    def wrong_isolations(self) -> int:
        return sum(len(score.wrong_isolations) for score in self.scores)

    @property
    def isolation_alarms(self) -> int:
        """While nothing was broken."""
        return sum(named.grade == "isolate" for score in self.scores for named in score.alarms)

    def delays_s(self) -> list[float]:
        return sorted(hit.delay_s for hit in self.found)

    def delays_steps(self) -> list[float]:
        """Time to detect in steps of the job before the fault, where their length is known."""
        return sorted(
            hit.delay_s / score.step_s for score in self.scores if score.step_s for hit in score.hits if hit.in_time
        )

    def beside(self) -> str:
        """Return the rest of what is worth knowing of a family, in one line."""
        parts = [f"precision {self.precision:.1f} %", f"class {self.class_recall:.0f} %", f"n={len(self.scores)}"]
        if self.delays_s():
            steps = self.delays_steps()
            parts.append(
                f"median {median(self.delays_s()):.0f} s" + (f" = {median(steps):.1f} steps" if steps else "")
            )
        late = len(self.hits) - len(self.found)
        parts += [f"late {late}"] * bool(late) + [f"alarms {self.alarms}"] * bool(self.alarms)
        if self.wrong:
            names = sorted({f"{named.component} {named.fault_class}" for named in self.wrong})
            parts.append(f"wrong {len(self.wrong)}: {'; '.join(names[:2])}{' …' if len(names) > 2 else ''}")
        return ", ".join(parts)


def upper_bound(events: int) -> float:
    """Return how many events there may be at most in the mean when so many were seen, one-sided, at 95 %.

    The Poisson mean at which seeing so few or fewer has a chance of 5 %; for none that is ln 20, about three.

    >>> round(upper_bound(0), 3), round(upper_bound(2), 3)
    (2.996, 6.296)
    """
    return float(chi2.ppf(0.95, 2 * (events + 1))) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of sorted values lies; not a number when there are none."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else math.nan


_FLOORS: dict[Group, tuple[float, float]] = {"single strong": (97.0, 99.5), "hard": (90.0, 97.0)}
_GOAL_HOURS = 100_000  # healthy job-hours without a verdict that would drain a node
_NEAR = 0.1  # of the true cost


def figures_of(scores: Mapping[str, Sequence[Score]]) -> tuple[Figure, ...]:
    """Return all figures; the analyzer's scores have an empty name, those of peers their own."""
    ours = scores[""]
    peers = {name: those for name, those in scores.items() if name}
    return (
        *_overall(ours),
        *_alarms(Tally(ours)),
        *_endings(ours),
        *_costs(ours),
        *_times(Tally(ours)),
        *show_reliability(ours),
        *_sizes(ours),
        *(figure for name, those in peers.items() for figure in _peer(name, those, ours)),
        *_families(ours),
    )


def _overall(scores: Sequence[Score]) -> Iterator[Figure]:
    for group, (floor, goal) in _FLOORS.items():
        tally = Tally([score for score in scores if score.group == group])
        if not tally.faults:
            continue
        wrong = (
            f"{len(tally.wrong)} wrong, {sum(score.covered for score in tally.scores)} of them name the part as well"
        )
        late = len(tally.hits) - len(tally.found)
        yield Figure(f"{group}: precision, part exact", tally.precision, "%", floor, goal, True, wrong)
        beside = f"{len(tally.found)} of {tally.faults} faults, {late} more too late"
        yield Figure(f"{group}: recall, part exact", tally.recall, "%", floor, goal, True, beside)
        yield Figure(f"{group}: recall, part and class", tally.class_recall, "%")
        yield Figure(f"{group}: side right, where it has one", tally.side_right, "%")
        yield Figure(
            f"{group}: ambiguous", tally.ambiguous, "%", None, None, False, "of verdicts on the part at fault"
        )


def _alarms(tally: Tally) -> Iterator[Figure]:
    hours = tally.healthy_hours
    if not hours:
        return
    beside = f"in {hours:.2f} healthy job-hours"
    yield Figure("false alarms", tally.alarms, "", 0, 0, False, beside)
    bound = upper_bound(tally.alarms) / hours
    yield Figure("false alarms, 95 % upper bound", bound, "1/h", None, None, False, "per healthy job-hour, Poisson")
    yield Figure(
        "wrong verdicts of isolation grade", tally.wrong_isolations, "", 0, 0, False, "healthy and faulty time"
    )
    sure = upper_bound(tally.isolation_alarms) / hours
    goal = upper_bound(0) / _GOAL_HOURS
    beside = f"the goal is none in {_GOAL_HOURS:,} job-hours"
    yield Figure("isolation-grade alarms, 95 % bound", sure, "1/h", None, goal, False, beside)


def _endings(scores: Sequence[Score]) -> Iterator[Figure]:
    crashed = [score for score in scores if score.crashed]
    beside = ", ".join(sorted({score.scenario for score in crashed})[:3])
    yield Figure("runs in which the analyzer crashed", len(crashed), "", 0, 0, False, beside)
    lingering = sum(score.outlasting for score in scores)
    yield Figure("verdicts that outlast a healed fault", lingering, "", None, 0, False, "by 15 s and more")


def _costs(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield how often what verdicts say a fault has cost is within a tenth of what the simulator lost."""
    off = [score.cost_off for score in scores if score.cost_off is not None]
    if not off:
        return
    unknown = sum(math.isinf(one) for one in off)
    beside = (
        f"{len(off)} runs with a verdict on a fault that costs 1 % and more, {unknown} of them said to be unknown"
    )
    near = sum(one <= _NEAR for one in off)
    yield Figure("cost within 10 % of the truth", percent(near, len(off)), "%", 95, None, True, beside)


def _times(tally: Tally) -> Iterator[Figure]:
    for kind, delays in (("s", tally.delays_s()), ("steps", tally.delays_steps())):
        if delays:
            beside = f"median {median(delays):.1f}, nine in ten within {quantile(delays, 0.9):.1f}"
            yield Figure(f"time to detect, {kind}", median(delays), kind, None, None, False, beside)


def _sizes(scores: Sequence[Score]) -> Iterator[Figure]:
    for ranks in sorted(SEEDS_OF_SIZE)[1:]:
        for group in _FLOORS:
            tally = Tally([score for score in scores if score.ranks == ranks and score.group == group])
            if tally.faults:
                yield Figure(f"{ranks:,} ranks, {group}: recall", tally.recall, "%", reference=tally.beside())


def _peer(name: str, scores: Sequence[Score], ours: Sequence[Score]) -> Iterator[Figure]:
    """Compare a peer on the faults that its rule is made for, and on silence."""
    own = "comm_slow" if name == "delay matrix" else "noncomm_slow"
    chosen = [index for index, score in enumerate(scores) if own in score.fault_classes and score.group != "silence"]
    if chosen:
        tally, beside = Tally([scores[index] for index in chosen]), Tally([ours[index] for index in chosen])
        note = f"our re-implementation, on {own} scenarios; the analyzer there {{:.1f}} %"
        yield Figure(f"peer {name}: recall", tally.recall, "%", reference=note.format(beside.recall))
        yield Figure(f"peer {name}: precision", tally.precision, "%", reference=note.format(beside.precision))
    alarms = Tally(scores)
    if alarms.healthy_hours:
        per_hour = alarms.alarms / alarms.healthy_hours
        yield Figure(f"peer {name}: false alarms", per_hour, "1/h", None, None, False, "per healthy job-hour")


def _families(scores: Sequence[Score]) -> Iterator[Figure]:
    for family in sorted({score.family for score in scores}):
        tally = Tally([score for score in scores if score.family == family])
        if tally.faults:
            yield Figure(f"family {family}: recall", tally.recall, "%", reference=tally.beside())
        else:
            yield Figure(f"family {family}: false alarms", tally.alarms, "", None, 0, False, tally.beside())


_WORLDS_FLOOR, _WORLDS_GOAL = 95.0, 99.0  # precision and recall of exact parts in worlds that nobody tuned to
_SILENT_FLOOR, _SILENT_GOAL = 99.0, 100.0


def figures_of_worlds(scores: Sequence[Score]) -> tuple[Figure, ...]:
    """Return the figures of drawn worlds: overall, by kind, by confidence, and each world that went wrong."""
    tally = Tally(scores)
    right, wrong = len(tally.hits), len(tally.wrong)
    quiet = [score for score in scores if not score.fault_classes and not score.unseen]
    hidden = [score for score in scores if score.unseen and not score.fault_classes]
    silent = sum(not (score.alarms or score.wrong) for score in quiet)
    still = sum(not (score.alarms or score.wrong) for score in hidden)
    floors = (_WORLDS_FLOOR, _WORLDS_GOAL)
    return (
        _share("worlds: precision, part exact", right, right + wrong, "verdicts", *floors),
        _share("worlds: recall, part exact", right, tally.faults, "faults", *floors),
        _share("worlds: healthy silent", silent, len(quiet), "worlds", _SILENT_FLOOR, _SILENT_GOAL),
        _share("worlds: nothing wrong said where nothing can be seen", still, len(hidden), "worlds"),
        *_endings(scores),
        *_kinds(scores),
        *show_reliability(scores),
        *_gone_wrong(scores),
    )


def _share(
    name: str, part: int, whole: int, of: str, floor: float | None = None, goal: float | None = None, beside: str = ""
) -> Figure:
    low, high = interval(part, whole)
    text = f"{part} of {whole} {of}, 95 % interval {100 * low:.1f} to {100 * high:.1f}"
    return Figure(name, percent(part, whole), "%", floor, goal, True, "; ".join(filter(None, (text, beside))))


def _kinds(scores: Sequence[Score]) -> Iterator[Figure]:
    for kind in sorted({score.family for score in scores}):
        mine = [score for score in scores if score.family == kind]
        tally = Tally(mine)
        unseen = sum(score.unseen for score in mine)
        beside = f"{len(tally.wrong)} wrong verdicts in {len(mine)} worlds, {unseen} not to be seen"
        if tally.faults:
            yield _share(f"worlds, {kind}: recall", len(tally.hits), tally.faults, "faults", beside=beside)
        else:
            yield Figure(f"worlds, {kind}: wrong verdicts", len(tally.wrong), "", None, 0, False, beside)


def _gone_wrong(scores: Sequence[Score]) -> Iterator[Figure]:
    """Yield each world with a miss or a wrong verdict; `--world` runs it again."""
    for score in scores:
        wrong = [
            f"wrong {named.component} {named.fault_class} {named.confidence:.2f}"
            for named in (*score.wrong, *score.alarms)
        ]
        parts = [f"missed {part}" for part in score.missed] + wrong
        if parts:
            name = f"world {score.world} of seed {score.seed}, {score.family}"
            yield Figure(name, len(parts), "errors", None, None, False, "; ".join(parts))
