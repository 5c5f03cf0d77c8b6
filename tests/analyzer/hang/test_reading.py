"""What is read from the store, over both kinds of store: the newest rows, since when they stand, what happened."""

import pytest

from analyzer.hang import reading
from analyzer.windows.window import End
from lockstep.records import Agent, Collective, Connection, Event, HostRecord, NicCounter
from lockstep.store.store import Store
from tests.analyzer.hang.stored import find, insert, member, progress, read
from tests.builders import SECOND, T0, make


def standing(**told: object) -> list[HostRecord]:
    """Rank 0 is inside operation 5 for eight seconds, and rank 1 does not come."""
    waiting = {"head_state": "recv_wait", "head_peer": 1, **told}
    waits = [progress(0, at_s, (6, 5, 4), **waiting) for at_s in range(-8, 1)]
    moves = [progress(0, -9, (5, 4, 3))]
    return [member(0), member(1), *moves, *waits, *(progress(1, at_s, (4, 4, 4)) for at_s in range(-9, 1))]


def test_newest_row_is_told_with_how_long_nothing_began_or_ended(store: Store) -> None:
    insert(store, *standing())
    facts = read(store)
    lines = facts.lines
    assert (lines.rank.tolist(), lines.process.tolist()) == ([0, 1], [0, 1])
    assert (lines.enqueued.tolist(), lines.started.tolist(), lines.done.tolist()) == ([6, 4], [5, 4], [4, 4])
    assert lines.seen_ns.tolist() == [T0, T0]
    assert lines.since_ns[0] == T0 - 6 * SECOND, "that is how far it was looked back"
    assert (facts.now_ns, facts.interval_ns, facts.is_dump) == (T0, SECOND, False)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any job counts as one of thousands."""
    monkeypatch.setattr(reading, "_MANY", 2)


def moving(rank: int, **told: object) -> list[HostRecord]:
    rows = [progress(rank, at_s, (9 + at_s, 9 + at_s, 9 + at_s), **told) for at_s in range(-8, 1)]
    return [member(rank, **told), *rows]


def test_large_job_in_which_all_move_is_not_read_further(store: Store, large: None) -> None:
    insert(store, *moving(0), *moving(1))
    facts = read(store)
    assert (facts.all_move, len(facts.lines)) == (True, 0)


def test_large_job_is_read_where_somebody_stands_or_anything_happened(store: Store, large: None) -> None:
    insert(store, *standing())
    assert (read(store).all_move, len(read(store).lines)) == (False, 2)
    told = make(Event, host="h1", ts_ns=T0 - SECOND, kind="process_stopped", component="host:h1", severity="error")
    insert(store, *moving(0, job="j2"), *moving(1, job="j2"), told)
    assert (read(store, job="j2").all_move, len(read(store, job="j2").lines)) == (False, 2)


def test_what_comes_after_the_look_or_belongs_to_another_attempt_is_not_read(store: Store) -> None:
    insert(store, *standing(), progress(0, 1, (9, 9, 9)), progress(0, 0, (9, 9, 9), attempt=1))
    assert read(store).lines.done.tolist() == [4, 4]


def test_rows_twice_and_out_of_order_change_nothing(store: Store) -> None:
    records = standing()
    insert(store, *reversed(records))
    insert(store, *records)
    facts = read(store)
    assert facts.lines.since_ns[0] == T0 - 6 * SECOND
    assert facts.interval_ns == SECOND


def test_circumstances_are_read_when_somebody_waits(store: Store) -> None:
    nic = {"host": "h1", "nic": "eth0"}
    insert(
        store,
        *standing(head_state="wire", head_channel=0),
        make(Event, host="h1", ts_ns=T0 - 8 * SECOND, kind="oom", component="host:h1", severity="error", message="x"),
        make(Event, host="h9", ts_ns=T0 - 8 * SECOND, kind="oom", component="host:h9", severity="error", message="y"),
        make(Agent, host="h1", ts_ns=T0 - SECOND, watermark_ns=T0 - 2 * SECOND),
        make(NicCounter, ts_ns=T0 - 9 * SECOND, up=True, **nic),
        make(NicCounter, ts_ns=T0 - SECOND, up=False, **nic),
        make(Connection, host="h0", comm=1, rank=0, peer=1, nic="eth4", transport="ib"),
        make(Connection, host="h1", comm=1, rank=1, peer=0, direction="recv", nic="eth5", transport="ib"),
    )
    facts = read(store)
    assert [event.message for event in facts.events] == ["x"]
    assert facts.last_seen_ns == {"h1": T0 - 2 * SECOND}
    assert facts.down_since_ns == {End("h1", "eth0"): T0 - 9 * SECOND}
    (pair,) = facts.pairs.values()
    assert (pair.src, pair.dst, pair.transport) == (End("h0", "eth4"), End("h1", "eth5"), "ib")


def test_newest_row_of_a_host_tells_when_it_fell_silent_where_no_collector_does(store: Store) -> None:
    records = [
        record for record in standing() if not (record.host == "h1" and getattr(record, "ts_ns", 0) > T0 - 8 * SECOND)
    ]
    insert(store, *records)
    assert read(store).last_row_ns == {"h0": T0, "h1": T0 - 8 * SECOND}
    (finding,) = find(store)
    assert (finding.fault_class, finding.component) == ("crash", "host:h1")


def test_job_that_moves_is_not_asked_about_further(store: Store) -> None:
    event = make(Event, host="h0", ts_ns=T0 - SECOND, kind="oom", component="host:h0", severity="error", message="x")
    insert(store, member(0), event, *(progress(0, at_s, (9 + at_s, 9 + at_s, 8 + at_s)) for at_s in range(-5, 1)))
    assert read(store).events == ()


def test_pace_is_learnt_from_operations_when_nobody_tells_it(store: Store) -> None:
    ops = [
        make(Collective, host="h0", comm=1, rank=0, seq=seq, enqueue_ns=T0 - 60 * SECOND + seq * SECOND // 2)
        for seq in range(0, 20, 2)
    ]
    insert(store, member(0), *ops)
    assert read(store, period_ns=None).period_ns == SECOND // 2, "sampled operations are counted by their numbers"


def test_pace_is_learnt_from_progress_where_there_are_no_operations(store: Store) -> None:
    insert(
        store,
        member(0),
        *(progress(0, at_s, (2 * at_s + 99, 2 * at_s + 99, 2 * at_s + 98)) for at_s in range(-20, 1)),
    )
    assert read(store, period_ns=None).period_ns == SECOND // 2


def test_nothing_is_known_of_an_empty_store(store: Store) -> None:
    assert len(read(store, period_ns=None).lines) == 0
    assert find(store) == []


def test_only_progress_and_nothing_else_names_the_host(store: Store) -> None:
    rows = [record for record in standing() if not hasattr(record, "nnodes")]
    insert(store, *rows)
    (finding,) = find(store)
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h1")


def test_snapshot_without_a_past_is_judged_by_what_it_shows_open(store: Store) -> None:
    since_ns = T0 - 8 * SECOND
    insert(store, member(0), member(1), progress(0, 0, (5, 5, 4), oldest_open_ns=since_ns), progress(1, 0, (4, 4, 4)))
    assert read(store).lines.since_ns.tolist() == [since_ns, T0]


def test_end_of_a_process_is_read_and_told_before_the_standstill_alone_would_be(store: Store) -> None:
    moving = [progress(rank, at_s, (at_s + 10, at_s + 10, at_s + 9)) for rank in (0, 1) for at_s in range(-9, -2)]
    standing = [progress(rank, at_s, (7, 7, 6), head_state="recv_wait") for rank in (0, 1) for at_s in (-2, -1, 0)]
    insert(store, member(0), member(1), *moving, *standing)
    assert find(store) == []
    told = {"kind": "process_gone", "component": "host:h1", "severity": "error", "message": "", "rank": 1}
    insert(store, make(Event, host="h1", ts_ns=T0 - 2 * SECOND, **told))
    assert [(finding.fault_class, finding.component) for finding in find(store)] == [("crash", "rank:1")]
