"""A fault costs what its steps took beyond the usual and all of a standstill, and what it has cost never falls."""

from dataclasses import replace

import numpy as np
import pytest

from analyzer.impact import Progress, charge, impact_of, open_account, resume_account
from analyzer.incidents import JobState, TrackingOptions, track
from analyzer.steps.history import StepHistory, add_steps
from analyzer.steps.traffic import Pace
from analyzer.windows.window import Context, Finding, Window
from lockstep.verdict import Incident
from tests.analyzer.looking import found, look
from tests.builders import SECOND, T0

GPUS, HOP_S = 64, 2
SLOW, HUNG = found("gpu:h5/2", "noncomm_slow"), replace(found("job:train", "software"), stands_still=True)


def history(*levels: tuple[float, int]) -> StepHistory:
    """Return steps of some seconds each, some times, one after the other since T0; they differ by a percent."""
    length_ns = np.concatenate([np.full(steps, seconds * SECOND) for seconds, steps in levels])
    length_ns = (length_ns * (1 + np.resize([0.01, -0.01], len(length_ns)))).astype(np.int64)
    start_ns = T0 + np.concatenate([[0], np.cumsum(length_ns)[:-1]]).astype(np.int64)
    return add_steps(StepHistory(), start_ns, length_ns, np.zeros(len(length_ns), np.int64))


def until(steps: StepHistory, second: float) -> StepHistory:
    """Return the steps that have ended by then."""
    known = steps.start_ns + steps.length_ns <= T0 + second * SECOND
    told = (steps.start_ns[known], steps.length_ns[known], steps.bytes[known])
    return add_steps(StepHistory(), *told)


def evaluation(second: float) -> Context:
    end_ns = T0 + int(second * SECOND)
    return replace(look(), window=Window(end_ns - 6 * SECOND, end_ns), fresh_ns=end_ns - HOP_S * SECOND)


def follow(steps: StepHistory, finding: Finding, seen_s: tuple[int, int], last_s: int) -> list[Incident]:
    """Return the incident after each evaluation; the fault is seen in those from the one second to the other."""
    state, told = JobState(), list[Incident]()
    for second in range(6, last_s + 1, HOP_S):
        findings = [finding] if seen_s[0] <= second <= seen_s[1] else []
        state, changed = track(state, findings, evaluation(second), Progress(until(steps, second)), TrackingOptions())
        told += changed
    return told


def lost_s(incident: Incident) -> float:
    assert incident.verdict.impact.gpus == GPUS
    return (incident.verdict.impact.gpu_hours or 0.0) * 3_600 / GPUS


def test_part_is_not_called_normal_while_steps_stay_as_long_as_it_made_them() -> None:
    """As a slow NIC was seen live: its sends went into a buffer for some seconds, and steps stayed long."""
    stays, heals = history((0.5, 40), (0.9, 120)), history((0.5, 40), (0.9, 24), (0.5, 120))
    seen_s, since = (22, 40), 40 + HOP_S * TrackingOptions().clear_evaluations

    def closed_s(steps: StepHistory) -> float:
        return next((one.closed_ns - T0) / SECOND for one in follow(steps, SLOW, seen_s, 100) if one.closed_ns)

    assert since <= closed_s(heals) <= since + 6
    assert closed_s(stays) == 40 + HOP_S * TrackingOptions().pending_evaluations, (
        "its level may have changed for good"
    )


def test_straggler_that_healed_has_cost_what_it_did_however_late_it_was_noticed() -> None:
    steps = history((0.5, 40), (0.9, 50), (0.5, 60))  # slow from second 20 to 65
    told = follow(steps, SLOW, (26, 68), 90)
    assert told[-1].state == "closed"
    assert lost_s(told[-1]) == pytest.approx(50 * 0.4, rel=0.05), "healing takes nothing back"
    impact = told[-1].verdict.impact
    assert impact.step_time_ratio == pytest.approx(1.0, abs=0.02)
    assert impact.peak_ratio == pytest.approx(1.8, rel=0.03)
    assert impact.mean_ratio == pytest.approx(56 / 36, rel=0.02), "closed at second 76"
    assert impact.usual_step_s == pytest.approx(0.5, rel=0.01)
    costs = [lost_s(one) for one in told]
    assert costs == sorted(costs)


def test_standstill_counts_fully_whatever_the_class_and_once_when_it_ends() -> None:
    forever = replace(HUNG, since_ns=T0 + 21 * SECOND)
    (*_, last) = follow(history((0.5, 42)), forever, (24, 60), 60)
    assert last.verdict.impact.stands_still
    assert lost_s(last) == pytest.approx(39, rel=0.02)
    assert last.verdict.impact.gpu_hours == pytest.approx(0.69, abs=0.01)
    for_a_while = history((0.5, 42), (30.5, 1), (0.5, 40))
    (*_, last) = follow(for_a_while, forever, (24, 51), 70)
    assert last.state == "closed"
    assert lost_s(last) == pytest.approx(30, rel=0.02), "the step that contains it is not charged on top"


def test_analyzer_that_takes_over_goes_on_where_the_other_was() -> None:
    steps = history((0.5, 40), (1.0, 60))
    opened = open_account(Progress(until(steps, 30)), T0 + 20 * SECOND, SLOW)
    whole = charge(opened, Progress(steps), SLOW, evaluation(80))
    first = charge(opened, Progress(until(steps, 50)), SLOW, evaluation(50))
    stored = impact_of(first, SLOW, evaluation(50))
    newest = add_steps(StepHistory(), steps.start_ns[50:], steps.length_ns[50:], steps.bytes[50:])  # knows no others
    resumed = resume_account(stored, T0 + 20 * SECOND, T0 + 50 * SECOND)
    assert charge(resumed, Progress(newest), SLOW, evaluation(80)).lost_ns == pytest.approx(whole.lost_ns, rel=0.03)


def test_fault_noticed_only_after_hundreds_of_short_steps_is_held_against_those_before_it() -> None:
    steps = history((0.02, 1000), (0.06, 100), (0.06, 50))
    account = open_account(Progress(until(steps, 26)), T0 + 25 * SECOND, SLOW)
    assert account.usual_ns == pytest.approx(0.02 * SECOND, rel=0.01)
    assert charge(account, Progress(steps), SLOW, evaluation(29)).lost_ns == pytest.approx(150 * 0.04e9, rel=0.05)


def test_operations_stand_in_where_steps_cannot_be_cut_any_more() -> None:
    pace = Pace(T0 + np.arange(60) * SECOND, np.repeat([92, 20], [20, 40]))  # 4.6 times slower from second 20 on
    before = history((0.5, 40))
    told, state = list[Incident](), JobState()
    for second in range(26, 61, HOP_S):
        progress = Progress(before, is_stale=True, pace=Pace(pace.ts_ns[:second], pace.operations[:second]))
        state, changed = track(state, [SLOW], evaluation(second), progress, TrackingOptions())
        told += changed
    assert told[-1].verdict.impact.step_time_ratio == pytest.approx(4.6, rel=0.01)
    assert lost_s(told[-1]) == pytest.approx(40 * (1 - 1 / 4.6), rel=0.05)
    silent = charge(
        open_account(Progress(before), T0 + 20 * SECOND, SLOW), Progress(before, True), SLOW, evaluation(40)
    )
    assert silent.ratio is None, "nobody knows how long a step takes now"


def test_cost_without_known_steps_is_what_the_stage_reckons_or_unknown() -> None:
    unknown = open_account(Progress(), T0, SLOW)
    assert charge(unknown, Progress(), SLOW, evaluation(9)).lost_ns is None
    assert impact_of(unknown, SLOW, look()).gpu_hours is None
    half = replace(SLOW, lost_share=0.5)
    assert charge(unknown, Progress(), half, evaluation(8)).lost_ns == 4 * SECOND
    standing = charge(unknown, Progress(), HUNG, evaluation(8))
    assert standing.lost_ns == 8 * SECOND
    assert charge(standing, Progress(), None, evaluation(10)).lost_ns == 8 * SECOND
