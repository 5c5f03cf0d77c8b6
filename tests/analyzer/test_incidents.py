"""Findings of evaluations become incidents that open when confirmed, keep their name, and end with a reason."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from analyzer.impact import Progress
from analyzer.incidents import JobState, TrackingOptions, close_all, resume, track
from analyzer.windows.window import Finding, Window
from lockstep.verdict import Incident
from tests.analyzer.looking import HOP_NS, end_of, found, look
from tests.builders import SECOND, T0

OPTIONS = TrackingOptions()
CLEAR = OPTIONS.clear_evaluations
NIC, OTHER, WIRE = "nic:h3/eth1", "nic:h5/eth0", "link:h3/eth1--h4/eth1"
Told = list[list[Incident]]


def play(
    evaluations: Iterable[Sequence[Finding | str] | None],
    state: JobState | None = None,
    *,
    first: int = 0,
    silent: Iterable[str] = (),
    lost: Iterable[str] = (),
) -> tuple[JobState, Told]:
    """Track one evaluation after the other, each given by what it found, and return what each confirmed or closed."""
    state, told = state or JobState(), []
    for number, parts in enumerate(evaluations, first):
        findings = None if parts is None else [found(part) if isinstance(part, str) else part for part in parts]
        state, changed = track(state, findings, look(number, silent=silent, lost=lost), Progress(), OPTIONS)
        told.append([one for one in changed if one.state == "closed" or one.verdict.last_seen_ns == one.updated_ns])
    return state, told


def test_fault_opens_an_incident_when_it_is_confirmed_and_keeps_its_id() -> None:
    _, told = play([[NIC], *([[]] * 40)])
    assert not any(told)
    state, (*before, (incident,)) = play([[], [NIC], [NIC]])
    assert before == [[], []]
    assert (incident.state, incident.opened_ns, incident.updated_ns) == ("open", end_of(2), end_of(2))
    assert incident.verdict.component == NIC
    assert incident.verdict.since_ns == end_of(1) - HOP_NS, "what was new in the first of the two showed it"
    assert (incident.verdict.last_seen_ns, incident.verdict.id) == (end_of(2), incident.id)
    assert state.open == [incident]
    _, told = play([[NIC], [], [], [NIC], [], [], [NIC]])
    assert [len(changed) for changed in told] == [0, 0, 0, 0, 0, 0, 1]
    _, told = play([[NIC]] * 5)
    incidents = [incident for changed in told for incident in changed]
    assert [incident.updated_ns for incident in incidents] == [end_of(number) for number in (1, 2, 3, 4)]
    (same,) = {(incident.id, incident.verdict.since_ns, incident.opened_ns) for incident in incidents}
    assert same[2] == end_of(1)


def test_host_that_makes_its_connections_look_slow_takes_over_what_was_told_of_them() -> None:
    """Samples of its flushes come once in a while; waits of its connections in every evaluation."""
    starved = replace(found("host:h3", "noncomm_slow"), slows_pairs=True)
    _, told = play([[WIRE], [WIRE], [starved], [replace(starved, is_stale=True)]])
    (first,), (then,) = told[1], told[2]
    assert (first.verdict.component, first.id) == (WIRE, then.id)
    assert (then.verdict.component, then.verdict.fault_class) == ("host:h3", "noncomm_slow")
    assert then.verdict.confidence == pytest.approx(0.9)
    assert [one.verdict.component for one in told[3]] == ["host:h3"]
    state, _ = play([[WIRE], [WIRE], [WIRE, found("host:h3", "noncomm_slow")]])
    assert len(state.sightings) == 2, "a host that is late for another reason does not explain a slow wire"
    state, _ = play([[OTHER], [OTHER], [OTHER, starved]])
    assert len(state.sightings) == 2


def test_certain_fault_needs_no_second_evaluation_and_may_know_when_it_began() -> None:
    _, told = play([[found("host:h2", "noncomm_hang", is_certain=True)]])
    assert [incident.verdict.component for incident in told[0]] == ["host:h2"]
    _, told = play([[found("host:h2", "noncomm_hang", is_certain=True, since_ns=T0 + 7)]])
    assert told[0][0].verdict.since_ns == T0 + 7


def early(looks: Sequence[tuple[float, Sequence[str]]], period_s: float | None) -> list[float]:
    """Return after how many seconds an incident opened; looks at whole hops are in the rhythm, all others early."""
    state, opened = JobState(), []
    for after_s, parts in looks:
        at = look(0)
        window = Window(at.window.start_ns + int(after_s * SECOND), at.window.end_ns + int(after_s * SECOND))
        period_ns = None if period_s is None else int(period_s * SECOND)
        is_early = after_s * SECOND % HOP_NS != 0
        context = replace(at, window=window, period_ns=period_ns, is_early=is_early)
        state, changed = track(state, [found(part) for part in parts], context, Progress(), OPTIONS)
        opened += [after_s for one in changed if one.opened_ns == window.end_ns]
    return opened


EARLY: dict[str, tuple[list[tuple[float, list[str]]], float | None, list[float]]] = {
    "a second with a new step": ([(0, [NIC]), (1, [NIC]), (2, [NIC])], 0.5, [1]),
    "no whole step is new": ([(0, [NIC]), (1, [NIC]), (2, [NIC])], 1.5, [2]),
    "nobody knows how long a step is": ([(0, [NIC]), (1, [NIC]), (2, [NIC])], None, [2]),
    "less than a second": ([(0, [NIC]), (0.5, [NIC]), (2, [NIC])], 0.1, [2]),
    "seen first between two": ([(0, []), (1, [NIC]), (2, [NIC])], 0.5, [2]),
    "two seconds are new": ([(0, []), (1, [NIC]), (2, [NIC]), (3, [NIC])], 1.5, [3]),
    "no more is asked of longer steps": ([(0, []), (1, [NIC]), (2, [NIC]), (3, [NIC])], 46, [3]),
    "nobody is missed between two": ([(0, [NIC]), (1, []), (2, [NIC])], 0.5, [2]),
    "missed in the rhythm": ([(0, []), (1, [NIC]), (2, []), (4, [NIC]), (5, [])], 0.5, []),
}


@pytest.mark.parametrize("case", EARLY)
def test_early_evaluation_confirms_by_what_is_new_in_it_and_misses_nobody(case: str) -> None:
    looks, period_s, opened = EARLY[case]
    assert early(looks, period_s) == opened


def test_early_evaluation_that_is_in_doubt_itself_confirms_nothing() -> None:
    first, second = look(0), replace(look(0), period_ns=SECOND // 2, is_early=True)
    second = replace(second, window=Window(second.window.start_ns + SECOND, second.window.end_ns + SECOND))
    for likelihood, opened in ((0.6, []), (0.8, [NIC])):
        seen = [found(NIC, likelihood=likelihood)]
        state, _ = track(JobState(), seen, first, Progress(), OPTIONS)
        _, changed = track(state, seen, second, Progress(), OPTIONS)
        assert [incident.verdict.component for incident in changed] == opened
    assert track(JobState(), [found(NIC, likelihood=0.6)], second, Progress(), OPTIONS) == (JobState(), [])


def test_early_evaluation_ends_and_ages_nothing() -> None:
    state, _ = play([[NIC], [NIC], *([[]] * (CLEAR - 1))])
    after, told = track(state, [], replace(look(1 + CLEAR), is_early=True), Progress(), OPTIONS)
    assert (after, told) == (state, [])


def test_incident_closes_after_some_clear_evaluations_in_a_row() -> None:
    state, told = play([[NIC], [NIC], *([[]] * CLEAR)])
    assert not any(told[2:-1])
    (closed,) = told[-1]
    assert (closed.state, closed.closed_ns, closed.updated_ns) == ("closed", end_of(1 + CLEAR), end_of(1 + CLEAR))
    assert (closed.closed_because, closed.id) == ("the part has been normal again", told[1][0].id)
    assert closed.verdict == told[1][0].verdict, "what was found last stays on record"
    assert state.open == []
    _, told = play([[NIC], [NIC], *([[]] * (CLEAR - 1)), [NIC], *([[]] * (CLEAR - 1))])
    again = told[1 + CLEAR][0]
    assert (again.id, again.state, again.flaps) == (told[1][0].id, "open", 0)
    assert not any(told[2 + CLEAR :]), "clear evaluations are counted from the last time it was seen"


def test_fault_that_returns_soon_is_the_same_one_that_flaps_and_much_later_a_new_one() -> None:
    _, told = play([[NIC], [NIC], *([[]] * CLEAR), [NIC]])
    (again,) = told[-1]
    assert (again.id, again.state, again.flaps) == (told[1][0].id, "open", 1)
    assert again.closed_ns is None
    pause: list[Sequence[str]] = [[]] * (OPTIONS.flap_evaluations + 1)
    _, told = play([[NIC], [NIC], *pause, [NIC], [NIC]])
    (again,) = told[-1]
    assert again.id != told[1][0].id
    assert again.flaps == 0


def test_slow_part_first_seen_while_windows_reach_back_into_a_fault_that_is_over_is_held_until_it_lasts() -> None:
    echoes = look(0).window
    reach = (echoes.end_ns - echoes.start_ns) // HOP_NS
    hang = found("gpu:h2/0", "noncomm_hang", is_certain=True)
    for fault in (hang, NIC):
        state, _ = play([[fault], [fault]])
        _, told = play([[OTHER]] * (reach - 1) + [[]] * 9, state, first=2)
        assert [one.verdict.component for changed in told for one in changed if one.state == "open"] == []
        _, told = play([[OTHER]] * (reach + 3), state, first=2)
        assert OTHER in {one.verdict.component for changed in told for one in changed}, "it is a fault of its own"
    state, _ = play([[NIC], [NIC]])
    _, told = play([[NIC, OTHER], [NIC, OTHER]], state, first=2)
    assert OTHER in {one.verdict.component for one in told[-1]}, "both are there at once"


def test_standstill_that_was_told_gets_another_name_only_if_that_lasts() -> None:
    hung = found("gpu:h5/0", "noncomm_hang", is_certain=True)
    other = found("host:h7", "noncomm_hang", is_certain=True)
    _, told = play([[hung], [other], [hung]])
    assert [incident.verdict.component for changed in told for incident in changed] == ["gpu:h5/0"] * 2
    _, told = play([[hung], [other], [other]])
    assert [incident.verdict.component for incident in told[2]] == ["host:h7"]
    _, told = play([[hung], [hung, other]])
    assert [incident.verdict.component for incident in told[1]] == ["gpu:h5/0", "host:h7"], "both at once are two"
    _, told = play([[hung], [found("rank:3", "crash", is_certain=True)]])
    assert [incident.verdict.component for incident in told[1]] == ["rank:3"]


def test_two_faults_have_their_own_incidents_also_in_one_host() -> None:
    state, told = play([[NIC], [NIC, OTHER], [OTHER], *([[OTHER]] * CLEAR)])
    assert [incident.verdict.component for incident in told[1]] == [NIC]
    assert {incident.verdict.component for incident in told[2]} == {OTHER}
    closed = [incident.verdict.component for changed in told for incident in changed if incident.state == "closed"]
    assert closed == [NIC]
    assert [incident.verdict.component for incident in state.open] == [OTHER]
    gpu = found("gpu:h3/1", "noncomm_slow")
    _, told = play([[NIC, gpu], [NIC, gpu]])
    assert {incident.verdict.component for incident in told[1]} == {NIC, "gpu:h3/1"}


def test_fault_whose_part_becomes_clearer_stays_one_incident() -> None:
    vague = found(WIRE, likelihood=0.34, doubt=[NIC, "nic:h4/eth1"])
    _, told = play([[vague], [vague], [NIC], [NIC]])
    assert [incident.verdict.component for incident in told[1]] == [WIRE]
    assert [incident.verdict.component for incident in told[2]] == [NIC], "its likelihood outweighs two vague looks"
    assert len({incident.id for changed in told for incident in changed}) == 1
    for vaguer in ("host:h3", WIRE):
        _, told = play([[vaguer], [vaguer], [NIC]])
        assert len({incident.id for changed in told for incident in changed}) == 1
    _, told = play([[found(WIRE), found("link:h4/eth1--h5/eth1")]] * 2)
    assert len(told[1]) == 2
    hung = found("host:h2", "noncomm_hang", doubt=["rank:19"], is_certain=True)
    _, told = play([[hung], [found("rank:19", "crash", likelihood=0.99, is_certain=True)]] + [[]])
    assert told[1][0].id == told[0][0].id
    names = [[found(WIRE, doubt=[NIC])], [found(NIC, doubt=[WIRE])]] * 6
    _, told = play(names)
    assert told[-1][0].verdict.confidence < 0.6


def test_slowdown_of_all_ranks_takes_the_name_of_the_part_that_makes_it_once_that_is_confirmed() -> None:
    everybody = found("job:train", "global_slow")
    state, told = play([[everybody], [everybody], [NIC], [NIC], [NIC]])
    (first,), unconfirmed, (renamed,), _ = told[1:]
    assert (first.verdict.component, unconfirmed) == ("job:train", [])
    assert (renamed.verdict.component, renamed.id, renamed.opened_ns) == (NIC, first.id, first.opened_ns)
    assert renamed.verdict.since_ns == first.verdict.since_ns
    assert [incident.verdict.component for incident in state.open] == [NIC]


def test_same_samples_seen_again_confirm_nothing() -> None:
    again = replace(found(NIC), is_stale=True)
    _, told = play([[NIC], [again], [again], [again]])
    assert not any(told)
    state, told = play([[NIC], [again], [NIC], *([[again]] * 9)])
    assert [len(changed) for changed in told[:3]] == [0, 0, 1]
    assert [incident.state for incident in state.open] == ["open"], "nothing shows that it is over"


def test_state_tells_what_explains_slowness_and_what_was_just_seen() -> None:
    found_once, _ = play([[NIC], []])
    long_ago, _ = play([[NIC], *([[]] * (CLEAR + 1))])
    everybody, _ = play([[found("job:train", "global_slow")]])
    told, _ = play([[found("job:train", "global_slow")]] * 2 + [[NIC]])
    states = (JobState(), found_once, long_ago, everybody, told)
    assert [state.names_a_part(CLEAR) for state in states] == [False, True, False, False, False]
    pending, opened, missed = (play(looks)[0] for looks in ([[NIC]], [[NIC], [NIC]], [[NIC], [NIC], []]))
    there = [[finding.component for finding in state.open_findings] for state in (pending, opened, missed)]
    assert there == [[], [NIC], []]


def test_second_analysis_of_the_same_looks_gives_the_same_ids() -> None:
    evaluations = [[NIC], [NIC, OTHER], [NIC, OTHER]]
    assert play(evaluations) == play(evaluations)


def test_evaluation_that_cannot_be_judged_confirms_and_closes_nothing() -> None:
    before, _ = play([[NIC], [NIC], *([[]] * (CLEAR - 1))])
    after, changed = play([None] * 10, before, first=10)
    assert [incident.verdict for incident in after.open] == [incident.verdict for incident in before.open]
    assert not any(changed)
    _, told = play([[]], after, first=20)
    assert [incident.state for incident in told[0]] == ["closed"], "the last clear look, after the gap"
    state, _ = play([[NIC], [NIC], [], None])
    (incident,) = state.open
    assert (incident.verdict.last_seen_ns, incident.updated_ns) == (end_of(1), end_of(3))


@pytest.mark.parametrize(
    ("component", "host"),
    [(NIC, "h3"), (WIRE, "h4"), (WIRE, "h3"), ("host:h3", "h3"), ("link:h3--h4", "h4"), ("rank:25", "h3")],
)
def test_part_of_a_silent_host_is_not_taken_for_normal(component: str, host: str) -> None:
    before, _ = play([[component], [component]])
    hidden, _ = play([[]] * CLEAR, before, first=2, silent=[host])
    seen, _ = play([[]] * CLEAR, before, first=2, silent=["h6"])
    assert (len(hidden.open), len(seen.open)) == (1, 0)
    (known,), (unseen,) = before.open, hidden.open
    assert unseen == known.model_copy(update={"updated_ns": end_of(5), "unseen_since_ns": known.updated_ns})
    again, _ = play([[component]], hidden, first=6)
    assert [incident.unseen_since_ns for incident in again.open] == [None], "it is seen again"


@pytest.mark.parametrize("component", ["link:leaf0--spine1", "switch:leaf0", "job:train"])
def test_part_of_no_host_is_not_taken_for_normal_while_the_telemetry_of_many_is_lost(component: str) -> None:
    before, _ = play([[component], [component]])
    many = [f"h{number}" for number in range(6)]
    hidden, _ = play([[]] * CLEAR, before, first=2, silent=many, lost=many)
    seen, _ = play([[]] * CLEAR, hidden, first=6)
    assert (len(hidden.open), len(seen.open)) == (1, 0)


def test_lost_telemetry_is_one_incident_until_half_of_its_hosts_report_again() -> None:
    hosts = ["h0", "h1", "h2", "h3", "h4"]
    evidence: tuple[dict[str, object], ...] = ({"kind": "outage", "hosts": hosts},)
    job, leaf = (
        replace(found(part, "telemetry_lost"), is_certain=True, evidence=evidence)
        for part in ("job:train", "switch:leaf1")
    )
    state, (_, (lost,), *_) = play([[job], [leaf], [NIC], [NIC]], silent=hosts)
    assert (lost.verdict.fault_class, lost.verdict.component) == ("telemetry_lost", "switch:leaf1")
    assert len(state.open) == 2, "a fault beside it is one of its own"
    state, _ = play([[NIC]] * CLEAR, state, first=4, silent=hosts[:3])
    assert len(state.open) == 2
    state, told = play([[NIC]] * CLEAR, state, first=8, silent=hosts[:2])
    (closed,) = (incident for incident in told[-1] if incident.state == "closed")
    assert (closed.verdict.fault_class, closed.closed_because) == ("telemetry_lost", "its hosts report again")


def test_stored_incident_goes_on_under_its_id_and_closes_as_any_other() -> None:
    _, told = play([[NIC], [NIC]])
    stored = told[1][0]
    _, again = play([[NIC]], resume([stored]), first=7)
    (incident,) = again[0]
    assert (incident.id, incident.opened_ns) == (stored.id, stored.opened_ns)
    assert (incident.verdict.since_ns, incident.updated_ns) == (stored.verdict.since_ns, end_of(7))
    _, told = play([[NIC], [NIC]])
    _, again = play([[]] * CLEAR, resume(told[1]), first=2)
    assert [len(changed) for changed in again] == [0] * (CLEAR - 1) + [1]
    assert (again[-1][0].id, again[-1][0].state) == (told[1][0].id, "closed")


def test_job_that_is_gone_closes_all_its_incidents_and_says_why() -> None:
    state, _ = play([[NIC, OTHER], [NIC, OTHER], [NIC]])
    state, closed = close_all(state, now_ns=T0 + 10**12, last_ns=T0)
    why = "no telemetry of the job since 2023-11-14 22:13:20 UTC"
    ends = {
        (each.verdict.component, each.state, each.closed_ns, each.updated_ns, each.closed_because) for each in closed
    }
    assert ends == {(part, "closed", T0 + 10**12, T0 + 10**12, why) for part in (NIC, OTHER)}
    assert close_all(state, now_ns=T0 + 10**13, last_ns=T0) == (state, [])
