"""A job is running while it gives signs of life, and what an open incident says of it goes before that."""

import pytest

from api.views.jobs import Condition, find_job, list_jobs, list_steps
from api.views.ranks import list_communicators, list_ranks, newest_attempt
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import Capture, CaptureInfo
from lockstep.errors import NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.views.build import COMM, NOW, incident_on, load_job, put, step, waiting
from tests.builders import SECOND, T0, rows


@pytest.fixture(scope="module")
def store(shared_store: Store) -> Store:
    load_job(shared_store, "a")
    load_job(shared_store, "b/c")
    load_job(shared_store, "b/c", attempt=1, start_ns=T0 + 3600 * SECOND)
    return shared_store


def test_job_that_sends_is_running_with_its_size_and_one_that_is_silent_has_ended(
    store: Store, control: ControlDatabase
) -> None:
    job = find_job(store, control, "a", NOW)
    assert (job.condition, job.because) == ("running", "")
    assert (job.ranks, job.hosts, job.nccl_version) == (4, 2, "2.28.9")
    assert (job.first_ns, job.first_at) == (T0, "2023-11-14T22:13:20Z")
    assert job.last_ns == NOW - SECOND
    assert find_job(store, control, "a", NOW + 600 * SECOND).condition == "ended"
    assert find_job(store, control, "b/c", NOW).attempt == 1
    assert newest_attempt(store, "b/c") == 1
    assert newest_attempt(store, "b/c", 0) == 0
    with pytest.raises(NotPresent, match="the store knows no job 'x'"):
        find_job(store, control, "x", NOW)
    with pytest.raises(NotPresent, match="no communicator of a job 'x'"):
        newest_attempt(store, "x")
    with pytest.raises(NotPresent, match="no rank of job 'a', attempt 3"):
        list_ranks(store, "a", 3, NOW)


def test_open_incident_says_how_the_job_is_and_who_hangs_is_not_called_slow(
    store: Store, control: ControlDatabase
) -> None:
    known: list[tuple[str, Condition]] = [("global_slow", "slow"), ("comm_slow", "slow")]
    for fault_class, condition in [
        *known,
        ("telemetry_lost", "unseen"),
        ("noncomm_hang", "hung"),
        ("crash", "crashed"),
    ]:
        save_incidents(control, [incident_on("nic:h3/eth1", "i1", job="a", fault_class=fault_class)], None)
        job = find_job(store, control, "a", NOW)
        assert (job.condition, job.incidents) == (condition, ("i1",))
        assert job.because == "h3's eth1 sends at a tenth of its rate, says Zoë"
    slow = incident_on("nic:h3/eth1", "i1", job="a", fault_class="comm_slow")
    hung = incident_on("host:h3", "i2", job="a", fault_class="comm_hang")
    save_incidents(control, [slow, hung], None)
    assert find_job(store, control, "a", NOW).condition == "hung"


def test_attempts_come_by_job_and_number_and_go_on_after_a_place(store: Store, control: ControlDatabase) -> None:
    found = [(job.job, job.attempt) for job in list_jobs(store, control, NOW, 10)]
    assert found == [("a", 0), ("b/c", 0), ("b/c", 1)]
    rest = list_jobs(store, control, NOW, 10, after=("b/c", 0))
    assert [(job.job, job.attempt) for job in rest] == [("b/c", 1)]
    assert len(list_jobs(store, control, NOW, 2)) == 2
    assert [job.attempt for job in list_jobs(store, control, NOW, 10, job="b/c")] == [0, 1]


def test_only_those_that_are_as_asked_are_listed(store: Store, control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", "i1", job="b/c", fault_class="comm_hang")], None)

    def listed(
        *conditions: Condition, job: str | None = None, after: tuple[str, int] | None = None
    ) -> list[tuple[str, int, str]]:
        found = list_jobs(store, control, NOW, 10, after, job, conditions)
        return [(each.job, each.attempt, each.condition) for each in found]

    assert listed("running") == [("a", 0, "running")]
    assert listed("hung", "slow") == [("b/c", 0, "hung")]
    assert listed("ended") == [("b/c", 1, "ended")]
    assert listed("ended", "hung") == [("b/c", 0, "hung"), ("b/c", 1, "ended")]
    assert listed("running", job="b/c") == listed("crashed") == []
    assert listed("running", after=("a", 0)) == []


def test_ranks_say_where_they_are_and_what_they_wait_for_and_communicators_list_them(store: Store) -> None:
    put(
        store,
        [
            waiting("a", 1, NOW, state="peer_wait", since_ns=T0 + SECOND),
            waiting("a", 2, NOW, state="idle", since_ns=None),
        ],
    )
    ranks = list_ranks(store, "a", 0, NOW)
    assert [(rank.rank, rank.host, rank.gpu) for rank in ranks] == [
        (0, "a-h0", 0),
        (1, "a-h0", 1),
        (2, "a-h1", 0),
        (3, "a-h1", 1),
    ]
    assert ranks[3].gpu_uuid == "GPU-a-3"
    assert (ranks[1].waits_for, ranks[1].waits_in, ranks[1].waits_since_ns) == ("peer_wait", "AllReduce", T0 + SECOND)
    assert (ranks[2].waits_for, ranks[2].waits_in, ranks[2].waits_since_ns) == ("idle", None, None)
    assert (ranks[0].waits_for, ranks[0].done) == (None, None)
    assert ranks[1].done == 10
    assert list_ranks(store, "a", 0, NOW + 600 * SECOND)[1].waits_for is None
    (only,) = list_communicators(store, "a", 0, 10)
    assert (only.comm, only.name, only.ranks, only.known_ranks, only.hosts) == (str(COMM), "world", 4, 4, 2)
    assert list_communicators(store, "a", 0, 10, after=(COMM,)) == []


def test_steps_come_newest_first_with_the_slowest_rank_told_before_found(store: Store) -> None:
    put(
        store,
        (step("a", number, rank, T0 + number * SECOND, 0.5 + 0.1 * rank) for number in range(3) for rank in (0, 1)),
    )
    put(store, [step("a", 0, 0, T0 + 60 * SECOND, 0.4, attempt=1)])
    steps = list_steps(store, "a", 10)
    assert [(each.attempt, each.step) for each in steps] == [(1, 0), (0, 2), (0, 1), (0, 0)]
    assert (steps[1].slowest_rank, steps[1].ranks, steps[1].source) == (1, 2, "told")
    assert steps[1].step_s == pytest.approx(0.6)
    assert [each.step for each in list_steps(store, "a", 2, after=(0, 2))] == [1, 0]
    put(store, [step("d", 4, 0, T0, 1.0, told=False), step("d", 4, 0, T0 + 5, 2.0)])
    (only,) = list_steps(store, "d", 10)
    assert (only.source, only.step_s, only.start_ns) == ("told", 2.0, T0 + 5)


def test_job_of_a_capture_with_nothing_but_steps_is_listed_with_the_newest(
    store: Store, control: ControlDatabase
) -> None:
    told = rows(*(step("only-steps", number, 0, T0 + number * SECOND, 0.25) for number in range(5)))
    info = CaptureInfo(job="only-steps", start_ns=T0, end_ns=NOW, hosts=("only-steps-h0",))
    load_capture(store, Capture(info, tables={"steps": told}))
    job = find_job(store, control, "only-steps", NOW)
    assert (job.step, job.step_s, job.ranks, job.condition) == (4, 0.25, 1, "ended")
