"""Verdicts of single windows become incidents that open when confirmed, keep their name, and end with a reason."""

from collections.abc import Iterable

import pytest

from analyzer.incidents import JobState, TrackingOptions, close_all, learn_pace, resume, track
from lockstep.incident import Incident
from lockstep.verdict import Verdict
from tests.analyzer.build import WINDOW_NS, facts, verdict
from tests.builders import T0

OPTIONS = TrackingOptions()
NIC, OTHER = "nic:h3/eth1", "nic:h5/eth0"


def play(
    windows: Iterable[Iterable[str] | None],
    state: JobState | None = None,
    *,
    first: int = 0,
    silent: Iterable[str] = (),
) -> tuple[JobState, list[list[Incident]]]:
    """Track one window after the other, each given by the parts found in it, and return what each changed."""
    state, told = state or JobState(), []
    for number, components in enumerate(windows, first):
        found: list[Verdict] | None = None
        if components is not None:
            found = [verdict(component, number) for component in components]
        state, changed = track(state, found, facts(number, silent=silent), OPTIONS)
        told.append(changed)
    return state, told


def end_of(number: int) -> int:
    return T0 + (number + 1) * WINDOW_NS


def test_fault_of_one_window_is_not_told() -> None:
    _, told = play([[NIC], [], [], []])
    assert told == [[], [], [], []]


def test_fault_of_two_windows_in_a_row_opens_an_incident() -> None:
    state, told = play([[], [NIC], [NIC]])
    (incident,) = told[2]
    assert told[:2] == [[], []]
    assert (incident.state, incident.opened_ns, incident.updated_ns) == ("open", end_of(2), end_of(2))
    assert incident.verdict.component == NIC
    assert incident.verdict.since_ns == T0 + WINDOW_NS, "the fault began with the first of the two"
    assert incident.verdict.last_seen_ns == end_of(2)
    assert incident.verdict.id == incident.id
    assert list(state.open.values()) == [incident]


def test_fault_that_comes_every_other_window_is_not_told() -> None:
    _, told = play([[NIC], [], [NIC], [], [NIC]])
    assert not any(told)


def test_lasting_fault_keeps_its_id_and_beginning() -> None:
    _, told = play([[NIC]] * 5)
    incidents = [incident for changed in told for incident in changed]
    assert [incident.updated_ns for incident in incidents] == [end_of(number) for number in (1, 2, 3, 4)]
    assert len({incident.id for incident in incidents}) == 1
    assert {incident.verdict.since_ns for incident in incidents} == {T0}
    assert {incident.opened_ns for incident in incidents} == {end_of(1)}


def test_incident_closes_after_three_clear_windows() -> None:
    state, told = play([[NIC], [NIC], [], [], []])
    assert told[2:4] == [[], []]
    (closed,) = told[4]
    assert (closed.state, closed.closed_ns, closed.updated_ns) == ("closed", end_of(4), end_of(4))
    assert closed.closed_because == "the part has been normal again"
    assert closed.id == told[1][0].id
    assert closed.verdict == told[1][0].verdict, "what was found last stays on record"
    assert (state.open, state.seen) == ({}, {})


@pytest.mark.parametrize("clear", [1, 2])
def test_few_clear_windows_in_between_do_not_close_it(clear: int) -> None:
    _, told = play([[NIC], [NIC], *([[]] * clear), [NIC], [], []])
    opened, again = told[1][0], told[2 + clear][0]
    assert (again.id, again.state, again.verdict.since_ns) == (opened.id, "open", T0)
    assert told[-2:] == [[], []], "clear windows are counted from the last time it was seen"


def test_fault_that_returns_after_it_was_over_is_a_new_incident() -> None:
    _, told = play([[NIC], [NIC], [], [], [], [NIC], [NIC]])
    assert told[5] == []
    (again,) = told[6]
    assert again.id != told[1][0].id
    assert again.verdict.since_ns == T0 + 5 * WINDOW_NS


def test_two_faults_have_their_own_incidents() -> None:
    state, told = play([[NIC], [NIC, OTHER], [OTHER], [OTHER], [OTHER]])
    assert [incident.verdict.component for incident in told[1]] == [NIC]
    assert [incident.verdict.component for incident in told[2]] == [OTHER]
    assert {incident.verdict.component: incident.state for incident in told[4]} == {OTHER: "open", NIC: "closed"}
    assert [component for _, component in state.open] == [OTHER]


def test_second_analysis_of_the_same_windows_gives_the_same_ids() -> None:
    windows = [[NIC], [NIC, OTHER], [NIC, OTHER]]
    assert play(windows) == play(windows)


def test_ids_of_different_parts_jobs_and_attempts_differ() -> None:
    _, told = play([[NIC, OTHER], [NIC, OTHER]])
    twice = [verdict(NIC).model_copy(update=change) for change in ({}, {"job": "other"}, {"attempt": 2})]
    states = [track(JobState(), [found], facts(0), OPTIONS)[0] for found in twice]
    opened = [track(state, [found], facts(1), OPTIONS)[1][0] for state, found in zip(states, twice, strict=True)]
    ids = [incident.id for incident in (*told[1], *opened)]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 4


def test_window_that_cannot_be_judged_changes_nothing() -> None:
    before, told = play([[NIC], [NIC], [], []])
    after, changed = play([None] * 10, before, first=4)
    assert after == before
    assert not any(changed)
    _, told = play([[]], after, first=14)
    assert [incident.state for incident in told[0]] == ["closed"], "the third clear window, after the gap"


def test_part_of_a_silent_host_is_not_taken_for_normal() -> None:
    before, _ = play([[NIC], [NIC]])
    after, told = play([[]] * 10, before, first=2, silent=["h3"])
    assert not any(told)
    assert after.open == before.open


@pytest.mark.parametrize(
    ("component", "host"),
    [("link:h3/eth1--h4/eth1", "h4"), ("link:h3/eth1--h4/eth1", "h3"), ("host:h3", "h3"), ("link:h3--h4", "h4")],
)
def test_parts_are_known_to_belong_to_the_silent_host(component: str, host: str) -> None:
    before, _ = play([[component], [component]])
    hidden, _ = play([[]] * 3, before, first=2, silent=[host])
    seen, _ = play([[]] * 3, before, first=2, silent=["h30"])
    assert (len(hidden.open), len(seen.open)) == (1, 0)


def test_stored_incident_goes_on_under_its_id() -> None:
    _, told = play([[NIC], [NIC]])
    stored = told[1][0]
    _, again = play([[NIC]], resume([stored]), first=7)
    (incident,) = again[0]
    assert (incident.id, incident.opened_ns, incident.verdict.since_ns) == (stored.id, stored.opened_ns, T0)
    assert incident.updated_ns == end_of(7)


def test_stored_incident_closes_as_any_other() -> None:
    _, told = play([[NIC], [NIC]])
    _, again = play([[], [], []], resume(told[1]), first=2)
    assert [len(changed) for changed in again] == [0, 0, 1]
    assert (again[2][0].id, again[2][0].state) == (told[1][0].id, "closed")


def test_usual_pace_is_the_median_of_windows_without_a_fault() -> None:
    state = JobState()
    assert state.usual_pace is None
    for number, (operations, found) in enumerate([(640, []), (320, [NIC]), (1280, []), (700, []), (320, [NIC])]):
        verdicts = [verdict(component, number) for component in found]
        state, _ = track(state, verdicts, facts(number, operations=operations), OPTIONS)
    assert state.usual_pace == facts(operations=700).pace


def test_windows_without_operations_or_judgement_do_not_change_the_usual_pace() -> None:
    state, _ = track(JobState(), [], facts(0, operations=640), OPTIONS)
    state, _ = track(state, [], facts(1, operations=0), OPTIONS)
    state, _ = track(state, None, facts(2, operations=64), OPTIONS)
    assert state.paces == (facts(operations=640).pace,)


def test_usual_pace_forgets_the_distant_past() -> None:
    state = JobState()
    for number in range(30):
        state, _ = track(state, [], facts(number, operations=64 * (1 + number // 18)), OPTIONS)
    assert state.paces == (facts(operations=128).pace,) * OPTIONS.usual_windows


def test_learning_the_pace_tracks_nothing() -> None:
    before, _ = play([[NIC], [NIC]])
    after = learn_pace(before, [], facts(2), OPTIONS)
    assert (after.seen, after.open) == (before.seen, before.open)
    assert after.usual_pace == facts().pace
    assert learn_pace(after, [verdict()], facts(3, operations=64), OPTIONS) == after


def test_job_that_is_gone_closes_all_its_incidents_and_says_why() -> None:
    state, _ = play([[NIC, OTHER], [NIC, OTHER], [NIC]])
    state, closed = close_all(state, now_ns=T0 + 10**12)
    assert {incident.verdict.component for incident in closed} == {NIC, OTHER}
    assert {(incident.state, incident.closed_ns, incident.updated_ns) for incident in closed} == {
        ("closed", T0 + 10**12, T0 + 10**12)
    }
    assert {incident.closed_because for incident in closed} == {"the job ended or sends nothing any more"}
    assert close_all(state, now_ns=T0 + 10**13) == (state, [])
