"""The figures of the accuracy benchmark: overall, by size, per family, calibration, and the peers beside."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.accuracy_plan import SEEDS_OF_SIZE, Group
from benchmarks.accuracy_score import Score
from benchmarks.accuracy_table import Tally, calibrate, quantile, right_at, upper_bound
from benchmarks.figures import Figure

_FLOORS: dict[Group, tuple[float, float]] = {"single strong": (97.0, 99.5), "hard": (90.0, 97.0)}
_GOAL_HOURS = 100_000  # healthy job-hours without a verdict that would drain a node
_SURE = 0.9


def figures_of(scores: Mapping[str, Sequence[Score]]) -> tuple[Figure, ...]:
    """Return all figures; the analyzer's scores have an empty name, those of peers their own."""
    ours = scores[""]
    peers = {name: those for name, those in scores.items() if name}
    return (
        *_overall(ours),
        *_alarms(Tally(ours)),
        *_endings(ours),
        *_times(Tally(ours)),
        *_calibration(ours),
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
    beside = ", ".join(sorted({score.story for score in crashed})[:3])
    yield Figure("runs in which the analyzer crashed", len(crashed), "", 0, 0, False, beside)
    lingering = sum(score.outlasting for score in scores)
    yield Figure("verdicts that outlast a healed fault", lingering, "", None, 0, False, "by 15 s and more")


def _times(tally: Tally) -> Iterator[Figure]:
    for kind, delays in (("s", tally.delays_s()), ("steps", tally.delays_steps())):
        if delays:
            beside = f"median {median(delays):.1f}, nine in ten within {quantile(delays, 0.9):.1f}"
            yield Figure(f"time to detect, {kind}", median(delays), kind, None, None, False, beside)


def _calibration(scores: Sequence[Score]) -> Iterator[Figure]:
    bins = calibrate(scores)
    share, verdicts = right_at(bins, _SURE)
    if verdicts:
        yield Figure(f"right of those at {_SURE} and above", share, "%", 90, 99, True, f"{verdicts} verdicts")
    for one in bins:
        if one.verdicts:
            name = f"right of those at {one.low:.2f} to {one.high:.2f}"
            yield Figure(name, 100 * one.right / one.verdicts, "%", None, None, True, f"{one.verdicts} verdicts")


def _sizes(scores: Sequence[Score]) -> Iterator[Figure]:
    for ranks in sorted(SEEDS_OF_SIZE)[1:]:
        for group in _FLOORS:
            tally = Tally([score for score in scores if score.ranks == ranks and score.group == group])
            if tally.faults:
                yield Figure(f"{ranks:,} ranks, {group}: recall", tally.recall, "%", None, None, True, tally.beside())


def _peer(name: str, scores: Sequence[Score], ours: Sequence[Score]) -> Iterator[Figure]:
    """Compare a peer on the faults that its rule is made for, and on silence."""
    own = "comm_slow" if name == "delay matrix" else "noncomm_slow"
    chosen = [place for place, score in enumerate(scores) if own in score.fault_classes and score.group != "silence"]
    if chosen:
        tally, beside = Tally([scores[place] for place in chosen]), Tally([ours[place] for place in chosen])
        said = f"our re-implementation, on {own} stories; the analyzer there {{:.1f}} %"
        yield Figure(f"peer {name}: recall", tally.recall, "%", None, None, True, said.format(beside.recall))
        yield Figure(f"peer {name}: precision", tally.precision, "%", None, None, True, said.format(beside.precision))
    alarms = Tally(scores)
    if alarms.healthy_hours:
        per_hour = alarms.alarms / alarms.healthy_hours
        yield Figure(f"peer {name}: false alarms", per_hour, "1/h", None, None, False, "per healthy job-hour")


def _families(scores: Sequence[Score]) -> Iterator[Figure]:
    for family in sorted({score.family for score in scores}):
        tally = Tally([score for score in scores if score.family == family])
        if tally.faults:
            yield Figure(f"family {family}: recall", tally.recall, "%", None, None, True, tally.beside())
        else:
            yield Figure(f"family {family}: false alarms", tally.alarms, "", None, 0, False, tally.beside())
