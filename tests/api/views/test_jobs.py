"""How a job is by its signs of life and incidents, who takes part, and what a MiB takes from rank to rank."""

import pytest

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.views.jobs import Condition, find_job, list_jobs, list_steps
from api.views.matrix import MatrixCache, read_lags, read_matrix
from api.views.ranks import find_closed, list_communicators, list_ranks, newest_attempt
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import Capture, CaptureInfo
from lockstep.clock import ManualClock
from lockstep.errors import NotPresent
from lockstep.records import Comm, Transfer, TransferStat
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.views.build import COMM, NOW, heartbeat, host_of, incident_on, load_job, put, step, waiting
from tests.builders import SECOND, T0, make, rows


@pytest.fixture(scope="module")
def store(shared_store: Store) -> Store:
    load_job(shared_store, "a")
    load_job(shared_store, "b/c")
    load_job(shared_store, "b/c", attempt=1, start_ns=T0 + 3600 * SECOND)
    return shared_store


def test_job_that_sends_is_running_and_one_that_is_silent_has_ended(store: Store, control: ControlDatabase) -> None:
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


def test_incident_says_how_the_job_is_and_who_hangs_is_not_slow(store: Store, control: ControlDatabase) -> None:
    known = {"global_slow": "slow", "comm_slow": "slow", "telemetry_lost": "unseen", "noncomm_hang": "hung"}
    for fault_class, condition in (known | {"crash": "crashed"}).items():
        save_incidents(control, [incident_on("nic:h3/eth1", "i1", job="a", fault_class=fault_class)], None)
        job = find_job(store, control, "a", NOW)
        assert (job.condition, job.incidents) == (condition, ("i1",))
        assert job.because == "h3's eth1 sends at a tenth of its rate, says Zoë"
    slow = incident_on("nic:h3/eth1", "i1", job="a", fault_class="comm_slow")
    hung = incident_on("host:h3", "i2", job="a", fault_class="comm_hang")
    save_incidents(control, [slow, hung], None)
    assert find_job(store, control, "a", NOW).condition == "hung"


def test_only_those_that_are_as_asked_are_listed(store: Store, control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", "i1", job="b/c", fault_class="comm_hang")], None)

    def listed(
        *conditions: Condition, job: str | None = None, after: tuple[str, int] | None = None
    ) -> list[tuple[str, int, str]]:
        found = list_jobs(store, control, NOW, 10, after, job, conditions)
        return [(each.job, each.attempt, each.condition) for each in found]

    assert listed() == [("a", 0, "running"), ("b/c", 0, "hung"), ("b/c", 1, "ended")]
    assert listed(after=("b/c", 0)) == [("b/c", 1, "ended")]
    assert [attempt for _, attempt, _ in listed(job="b/c")] == [0, 1]
    assert len(list_jobs(store, control, NOW, 2)) == 2
    assert listed("running") == [("a", 0, "running")]
    assert listed("hung", "slow") == [("b/c", 0, "hung")]
    assert listed("ended") == [("b/c", 1, "ended")]
    assert listed("ended", "hung") == [("b/c", 0, "hung"), ("b/c", 1, "ended")]
    assert listed("running", job="b/c") == listed("crashed") == []
    assert listed("running", after=("a", 0)) == []


def test_ranks_say_where_they_are_and_what_they_wait_for_and_communicators_list_them(store: Store) -> None:
    held = waiting("a", 1, NOW, state="peer_wait", since_ns=T0 + SECOND)
    put(store, [held, waiting("a", 2, NOW, state="idle", since_ns=None)])
    ranks = list_ranks(store, "a", 0, NOW)
    places = [(rank.rank, rank.host, rank.gpu) for rank in ranks]
    assert places == [(0, "a-h0", 0), (1, "a-h0", 1), (2, "a-h1", 0), (3, "a-h1", 1)]
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
    put(store, (step("a", n, rank, T0 + n * SECOND, 0.5 + 0.1 * rank) for n in range(3) for rank in (0, 1)))
    put(store, [step("a", 0, 0, T0 + 60 * SECOND, 0.4, attempt=1)])
    steps = list_steps(store, "a", 10)
    assert [(each.attempt, each.step) for each in steps] == [(1, 0), (0, 2), (0, 1), (0, 0)]
    assert (steps[1].slowest_rank, steps[1].ranks, steps[1].source) == (1, 2, "told")
    assert steps[1].step_s == pytest.approx(0.6)
    assert [each.step for each in list_steps(store, "a", 2, after=(0, 2))] == [1, 0]
    put(store, [step("d", 4, 0, T0, 1.0, told=False), step("d", 4, 0, T0 + 5, 2.0)])
    (only,) = list_steps(store, "d", 10)
    assert (only.source, only.step_s, only.start_ns) == ("told", 2.0, T0 + 5)


def test_job_of_a_capture_of_steps_is_listed_with_the_newest(store: Store, control: ControlDatabase) -> None:
    told = rows(*(step("only-steps", number, 0, T0 + number * SECOND, 0.25) for number in range(5)))
    info = CaptureInfo(job="only-steps", start_ns=T0, end_ns=NOW, hosts=("only-steps-h0",))
    load_capture(store, Capture(info, tables={"steps": told}))
    job = find_job(store, control, "only-steps", NOW)
    assert (job.step, job.step_s, job.ranks, job.condition) == (4, 0.25, 1, "ended")


def test_slow_link_stands_out_in_its_window_its_roll_up_and_its_communicator(store: Store) -> None:
    roster = read_roster(store, "a", 0)
    matrix = read_matrix(store, "a", 0, roster, Window(T0, NOW))
    cells = dict(zip(zip(matrix.cells.src, matrix.cells.dst, strict=True), matrix.cells.ms, strict=True))
    assert cells == {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 3.0, (3, 0): 1.0}
    assert (matrix.usual_ms, matrix.unit, matrix.comm) == (1.0, "ms/MiB", None)
    assert [(seat.rank, seat.host, seat.gpu) for seat in matrix.ranks][2:] == [(2, "a-h1", 0), (3, "a-h1", 1)]
    before = read_matrix(store, "a", 0, roster, Window(T0 - 60 * SECOND, T0))
    assert (before.cells.ms, before.usual_ms) == ((), None)
    assert max(read_matrix(store, "a", 0, roster, Window(T0 - 3600 * SECOND, NOW)).cells.ms) == 3.0
    put(store, (make(Comm, job="t", comm=1, rank=rank, nranks=2, host=f"t{rank}") for rank in (0, 1)))
    put(store, [make(Transfer, job="t", comm=1, rank=0, peer=1, bytes=1 << 20, wire_ns=2_000_000)])
    matrix = read_matrix(store, "t", 0, read_roster(store, "t", 0), Window(T0, NOW))
    assert (matrix.cells.src, matrix.cells.dst, matrix.cells.ms) == ((0,), (1,), (2.0,))
    put(store, (make(Comm, job="two", comm=1, rank=rank, nranks=3, world_rank=rank) for rank in range(3)))
    put(store, (make(Comm, job="two", comm=2, rank=rank, nranks=2, world_rank=rank + 1) for rank in range(2)))
    put(store, [make(TransferStat, job="two", comm=2, rank=0, peer=1, bytes=1 << 20, wire_ns=5_000_000)])
    matrix = read_matrix(store, "two", 0, read_roster(store, "two", 0), Window(T0, NOW), comm=2)
    assert [seat.rank for seat in matrix.ranks] == [1, 2]
    assert (matrix.cells.src, matrix.cells.dst, matrix.cells.ms) == ((0,), (1,), (5.0,))
    with pytest.raises(NotPresent, match="no communicator 99"):
        read_matrix(store, "two", 0, read_roster(store, "two", 0), Window(T0, NOW), comm=99)


def test_last_window_ends_where_the_slowest_host_that_talks_has_told_all(store: Store) -> None:
    load_job(store, "lagging")
    late, punctual = (host_of(rank, "lagging") for rank in (2, 0))
    put(store, [heartbeat(late, NOW + SECOND, lag_s=1.0), heartbeat(punctual, NOW + SECOND)])
    assert find_closed(store, "lagging", 0, NOW + SECOND).window == Window(T0 + 4 * SECOND, NOW)
    assert find_closed(store, "a", 0, NOW + 86_400 * SECOND).window.end_ns == NOW, "it ended long ago"
    with pytest.raises(NotPresent, match="knows nothing of job 'x', attempt 0"):
        find_closed(store, "x", 0, NOW)
    later = NOW + 60 * SECOND
    put(store, [heartbeat(host_of(0, "a"), later)])
    closed = find_closed(store, "a", 0, later)
    assert closed.silent == {host_of(2, "a")}
    assert closed.window.end_ns == NOW


def test_matrix_is_built_once_per_window(store: Store) -> None:
    load_job(store, "shelf")
    clock = ManualClock(NOW)
    cache = MatrixCache(store, clock)
    first = cache.show("shelf")
    assert cache.show("shelf") is first
    clock.advance(2)
    assert cache.show("shelf") is first, "the window is the same, so the matrix is"
    put(store, [make(TransferStat, job="shelf", comm=COMM, rank=0, peer=1, host="shelf-h0", ts_ns=NOW, wire_ns=9)])
    put(store, (heartbeat(host_of(rank, "shelf"), NOW + 2 * SECOND) for rank in (0, 2)))
    clock.advance(2)
    newer = cache.show("shelf")
    assert newer.matrix.to_ns == NOW + SECOND > first.matrix.to_ns
    assert newer.etag != first.etag
    assert newer.matrix.model_dump_json().encode() == newer.body


def test_rank_that_leaves_first_was_last_to_come_and_silence_has_no_lag(store: Store) -> None:
    lags = read_lags(store, "a", 0, read_roster(store, "a", 0), Window(T0, NOW), columns=5)
    assert lags.times_ns == tuple(T0 + 2 * number * SECOND for number in range(5))
    assert [row[0] for row in lags.lag_ms] == [0.0, 0.0, 0.0, 0.6]
    assert all(row == (row[0],) * 5 for row in lags.lag_ms)
    lags = read_lags(store, "a", 0, read_roster(store, "a", 0), Window(T0, NOW + 10 * SECOND), columns=2)
    assert lags.lag_ms[3] == (0.6, None)
    assert lags.column_ns == 10 * SECOND
