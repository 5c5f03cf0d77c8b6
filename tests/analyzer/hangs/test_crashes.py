"""Of processes that end together the first is named; who asked a whole job to end broke nothing."""

import pytest

from analyzer.hangs.facts import Happening
from tests.analyzer.hangs.build import Job, Line, event, line, world
from tests.builders import SECOND, T0

KILLED = "was killed by SIGKILL"
GAVE_UP = "exited with code 1"


def ended(rank: int, ago_s: float, how: str = GAVE_UP) -> Happening:
    return event("process_exit", f"h{rank // 2}", f"rank {rank} of job j1 (pid 7, python3) {how}", ago_s=ago_s)


def named(*happenings: Happening, lines: list[Line] | None = None) -> list[tuple[str, str]]:
    job = Job(lines=lines or world(), facts={"happenings": happenings, "heard_ns": {"h0": T0, "h1": T0}})
    return [(finding.fault_class, finding.component) for finding in job.find()]


def test_first_of_several_that_ended_is_named_and_not_those_that_followed() -> None:
    followers = (ended(rank, ago_s=9.7 - rank / 10) for rank in (0, 1, 3))
    assert named(*followers, ended(2, ago_s=10)) == [("crash", "rank:2")]


def test_first_that_ended_is_named_though_only_those_that_followed_are_behind() -> None:
    behind = world(r3=line(3, (4, 4, 4)))
    assert named(ended(2, ago_s=10), ended(3, ago_s=9.5), lines=behind) == [("crash", "rank:2")]


def test_those_that_ended_in_the_same_moment_stand_beside_the_first() -> None:
    job = Job(lines=world(), facts={"happenings": (ended(1, ago_s=9.99), ended(2, ago_s=10), ended(3, ago_s=9.5))})
    (finding,) = job.find()
    assert (finding.component, finding.ambiguous_with) == ("rank:2", ("rank:1",))
    assert finding.likelihood < 0.9


def test_of_the_same_moment_the_one_that_was_killed_took_the_others_with_it() -> None:
    assert named(ended(1, ago_s=10), ended(2, ago_s=9.99, how=KILLED)) == [("crash", "rank:2")]


def test_watchdog_that_ends_a_job_long_after_it_stood_still_is_no_reason() -> None:
    late = [ended(rank, ago_s=1) for rank in range(4)]
    assert named(*late) == []
    down = event("link_down", "h1", component="nic:h1/eth0")
    assert named(down, *late) == [("comm_hang", "nic:h1/eth0")]


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_job_that_was_asked_to_end_broke_nothing(signal: str) -> None:
    asked = [ended(rank, ago_s=9 - rank / 10, how=f"was killed by {signal}") for rank in range(4)]
    assert named(*asked) == []
    assert named(asked[2]) == [("crash", "rank:2")], "of one alone nobody knows why"


@pytest.mark.parametrize(
    ("happened", "named_for_it"),
    [
        (ended(2, ago_s=1), ("crash", "rank:2")),
        (event("process_stopped", "h1", "rank 2 was stopped", ago_s=1), ("noncomm_hang", "host:h1")),
        (event("link_down", "h1", component="nic:h1/eth0", ago_s=1), ("comm_hang", "nic:h1/eth0")),
    ],
)
def test_standstill_for_which_an_event_tells_the_reason_is_told_sooner(
    happened: Happening, named_for_it: tuple[str, str]
) -> None:
    def find_after(stood_s: float, *happenings: Happening) -> list[tuple[str, str]]:
        short = [line(rank, (5, 5, 4), since_ns=T0 - round(stood_s * SECOND)) for rank in range(4)]
        return named(*happenings, lines=short)

    assert find_after(1, happened) == [named_for_it]
    assert find_after(0.9, happened) == []
    assert find_after(3.9) == []


def test_host_whose_collector_goes_on_telling_is_not_gone() -> None:
    assert named(lines=world()[:2]) == []


def test_process_that_is_stopped_long_after_the_job_is_looked_at_by_somebody() -> None:
    waits = world(r1=line(1, (4, 4, 4)))
    looked_at = event("process_stopped", "h1", "rank 2 was stopped by a debugger", ago_s=2)
    assert named(looked_at, lines=waits) == [("noncomm_hang", "host:h0")]
    assert named(event("process_stopped", "h1", "rank 2 was stopped by a debugger", ago_s=9)) == [
        ("noncomm_hang", "host:h1")
    ]
    assert named(looked_at) == []


def test_first_that_ended_is_still_named_when_the_rows_of_the_others_run_out() -> None:
    stale = {"seen_ns": T0 - 2 * SECOND, "since_ns": T0 - 3 * SECOND}
    lines = [line(0, (5, 5, 4)), *(line(rank, (5, 5, 4), **stale) for rank in (1, 2, 3))]
    assert named(*(ended(rank, ago_s=11 - rank) for rank in (1, 2, 3)), lines=lines) == [("crash", "rank:1")]
