"""What is read from the store, over both kinds of store: the newest rows, since when they stand, what happened."""

from dataclasses import replace
from typing import Any

import pytest

from analyzer.hang import reading
from analyzer.hang.facts import HangMemory, HangOptions
from analyzer.hang.flow import date_by_steps
from analyzer.hang.hangs import find_hangs
from analyzer.windows.window import End
from lockstep.fabrics import leaf_spine
from lockstep.records import (
    Agent,
    Collective,
    Connection,
    Event,
    FabricCounter,
    HostRecord,
    NicCounter,
    Path,
    StepSample,
)
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from tests.analyzer.build import insert
from tests.analyzer.hang.stored import find, look_at, member, progress, read
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


def test_rows_twice_out_of_order_later_or_of_another_attempt_change_nothing(store: Store) -> None:
    records = standing()
    insert(store, *reversed(records))
    insert(store, *records, progress(0, 1, (9, 9, 9)), progress(0, 0, (9, 9, 9), attempt=1))
    facts = read(store)
    assert (facts.lines.since_ns[0], facts.lines.done.tolist()) == (T0 - 6 * SECOND, [4, 4])
    assert facts.interval_ns == SECOND


def test_rank_with_detail_off_moves_as_its_host_enqueues_and_nobody_says_that_its_gpu_stands(store: Store) -> None:
    def unseen(untimed: bool | None, job: str, stands: bool = False) -> list[HostRecord]:
        counts = [(6 if stands else 14 + at_s, 4, 4) for at_s in range(-9, 1)]
        told = [progress(1, at_s, each, untimed=untimed, job=job) for at_s, each in enumerate(counts, -9)]
        rest = [progress(0, at_s, (6, 5, 4), head_state="recv_wait", head_peer=1, job=job) for at_s in range(-9, 1)]
        return [member(0, job=job), member(1, gpu=0, job=job), *rest, *told]

    insert(store, *unseen(True, "j1"), *unseen(None, "j2"), *unseen(True, "j3", stands=True))
    assert find(store) == []
    (named,) = find(store, job="j2")
    assert "has work queued and begins none of it" in named.reason, "an agent of the release before marks nothing"
    assert find(store, job="j3") == [], "what it enqueued may have begun: nobody knows who waits"
    when = {"host": "h1", "ts_ns": T0 - 8 * SECOND, "severity": "error"}
    insert(store, make(Event, kind="process_stopped", component="host:h1", rank=1, **when))
    assert [(each.component, each.fault_class) for each in find(store, job="j3")] == [("host:h1", "noncomm_hang")]


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
    assert {host: report.reach_ns for host, report in facts.reports.items()} == {"h1": T0 - 2 * SECOND}
    assert facts.down_since_ns == {End("h1", "eth0"): T0 - 9 * SECOND}
    (pair,) = facts.pairs.values()
    assert (pair.src, pair.dst, pair.transport) == (End("h0", "eth4"), End("h1", "eth5"), "ib")


def test_ports_without_carrier_and_paths_of_connections_are_read_where_there_is_a_topology(store: Store) -> None:
    fabric = TopologyIndex(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1))
    port = {"host": "h0", "switch": "leaf0", "port": "spine0"}
    route = ["h0/eth0--leaf0", "leaf0--spine0", "leaf1--spine0", "h1/eth0--leaf1"]
    told = {"comm": 1, "nic": "eth0", "transport": "ib", "sport": 7}
    insert(
        store,
        *standing(head_state="wire", head_channel=0),
        make(FabricCounter, ts_ns=T0 - 9 * SECOND, up=True, **port),
        make(FabricCounter, ts_ns=T0 - SECOND, up=False, **port),
        make(FabricCounter, ts_ns=T0 - SECOND, up=False, **port | {"port": "h0/eth0"}),
        make(Connection, host="h0", rank=0, peer=1, **told),
        make(Connection, host="h1", rank=1, peer=0, direction="recv", **told),
        make(
            Path, host="h0", src_nic="eth0", dst="h1", dst_nic="eth0", sport=7, links=route, seen_ns=T0 - 9 * SECOND
        ),
    )
    facts = reading.read_progress(store, replace(look_at(store, T0), topology=fabric))
    assert facts.down_links == {"leaf0--spine0": T0 - 9 * SECOND}
    assert [pair.path for pair in facts.pairs.values()] == [tuple(route)]


def test_arguments_of_those_who_are_through_are_read(store: Store) -> None:
    opened = [progress(0, at_s, (5, 5, 4), open_bytes=64, open_dtype="ncclInt8") for at_s in range(-8, 1)]
    insert(store, member(0), member(1), *opened, *(progress(1, at_s, (5, 5, 5)) for at_s in range(-8, 1)))
    rows = [replace(ended(1, seq, -8), bytes=32 if seq == 4 else 64, dtype="ncclInt8") for seq in (2, 3, 4)]
    insert(store, *rows)
    (finding,) = find(store)
    assert (finding.fault_class, finding.evidence[0]["usual_bytes"]) == ("software", 32)


def test_newest_row_of_a_host_tells_when_it_fell_silent_where_no_collector_does(store: Store) -> None:
    records = [
        record for record in standing() if not (record.host == "h1" and getattr(record, "ts_ns", 0) > T0 - 8 * SECOND)
    ]
    insert(store, *records)
    assert read(store).last_row_ns == {"h0": T0, "h1": T0 - 8 * SECOND}
    (finding,) = find(store)
    assert (finding.fault_class, finding.component) == ("crash", "host:h1")


def test_standstill_that_began_since_the_evaluation_before_is_dated_however_many_were_left_out(store: Store) -> None:
    waits = [progress(0, at_s, (6, 5, 4), head_state="recv_wait", head_peer=1) for at_s in range(-20, 1, 2)]
    last = [progress(rank, -21, (5, 4, 4 - rank)) for rank in (0, 1)]
    insert(store, member(0), member(1), *last, *waits, make(Agent, host="h0", ts_ns=T0, watermark_ns=T0))
    context = replace(look_at(store, T0), silent=frozenset({"h1"}))

    def find_after(memory: HangMemory) -> list[tuple[str, str, int]]:
        facts = reading.read_progress(store, context, memory)
        named = find_hangs(facts, memory, context, HangOptions())[0]
        return [(each.fault_class, each.component, round((T0 - (each.since_ns or 0)) / SECOND)) for each in named]

    assert find_after(HangMemory(until_ns=T0 - 22 * SECOND)) == [("crash", "host:h1", 20)]
    assert find_after(HangMemory(until_ns=T0 - SECOND)) == [("noncomm_hang", "host:h1", 6)]


def test_job_that_moves_is_not_asked_about_further(store: Store) -> None:
    event = make(Event, host="h0", ts_ns=T0 - SECOND, kind="oom", component="host:h0", severity="error", message="x")
    insert(store, member(0), event, *(progress(0, at_s, (9 + at_s, 9 + at_s, 8 + at_s)) for at_s in range(-5, 1)))
    assert read(store).events == ()


def test_pace_is_learnt_from_progress_or_operations_when_nobody_tells_it(store: Store) -> None:
    assert len(read(store, period_ns=None).lines) == 0
    assert find(store) == []
    counted = [(2 * at_s + 99, 2 * at_s + 99, 2 * at_s + 98) for at_s in range(-20, 1)]
    insert(store, member(0, job="j2"), *(progress(0, n - 20, row, job="j2") for n, row in enumerate(counted)))
    assert read(store, job="j2", period_ns=None).period_ns == SECOND // 2
    ops = [operation(seq, -60 + seq / 2) for seq in range(0, 20, 2)]
    insert(store, member(0), *ops)
    assert read(store, period_ns=None).period_ns == SECOND // 2, "sampled operations are counted by their numbers"


def test_pace_is_not_that_of_operations_of_which_only_the_beginning_of_the_job_had_some(store: Store) -> None:
    steps = [operation(seq, -60 + seq / 2) for seq in range(100)]
    setup = [operation(seq, -80 + 8 * seq, func="Broadcast") for seq in range(4)]
    rare = [operation(seq, -80 + 20 * seq, func="AllGather") for seq in range(4)]
    insert(store, member(0), *steps, *setup)
    assert read(store, period_ns=None).period_ns == SECOND // 2
    insert(store, *rare)
    assert read(store, period_ns=None).period_ns == 20 * SECOND, "an evaluation every now and then comes round"


def operation(seq: int, at_s: float, job: str = "j1", **fields: object) -> Collective:
    """Return an operation of rank 0 that takes a tenth of a second."""
    begin_ns = T0 + round(at_s * SECOND)
    times = {"enqueue_ns": begin_ns, "start_ns": begin_ns, "end_ns": begin_ns + SECOND // 10}
    return make(Collective, host="h0", comm=1, rank=0, seq=seq, job=job, **{**times, **fields})


def test_pace_of_steps_with_several_operations_is_that_of_the_pauses_between_them(store: Store) -> None:
    bursts = [operation(5 * step + number, 10 * step - 60 + number / 5) for step in range(6) for number in range(5)]
    insert(store, member(0), *bursts)
    assert read(store, period_ns=None).period_ns == pytest.approx(9.2 * SECOND)
    two_steps = [operation(number, -40 + number / 5 + 8 * (number > 2), "j4") for number in range(6)]
    insert(store, member(0, job="j4"), *two_steps)
    assert read(store, job="j4", period_ns=None).period_ns == pytest.approx(8.2 * SECOND), (
        "there was one pause so far"
    )
    waiting = [operation(number, -40 + number / 5, "j3", end_ns=None) for number in range(5)]
    insert(store, member(0, job="j3"), *waiting)
    assert read(store, job="j3", period_ns=None).period_ns is None, "nothing has come round"


@pytest.mark.parametrize(("computes_s", "is_told"), [(2, True), (30, False)])
def test_after_long_computation_one_rank_may_be_late_as_long(store: Store, computes_s: int, is_told: bool) -> None:
    """Two ranks wait for the third, eight seconds after operations that came twice a second for a while."""
    before = [(2 * at_s + 200, 2 * at_s + 200, 2 * at_s + 200) for at_s in range(-60, -8 - computes_s)]
    done = before[-1][2]
    for rank in range(3):
        rows = [*before, *[(done, done, done)] * computes_s]
        rows += [(done + 1, done + (rank < 2), done)] * (61 - len(rows))
        insert(store, member(rank), *(progress(rank, number - 60, row) for number, row in enumerate(rows)))
    assert bool(find(store, period_ns=SECOND // 2)) == is_told


def test_only_progress_and_nothing_else_names_the_host(store: Store) -> None:
    rows = [record for record in standing() if not hasattr(record, "nnodes")]
    insert(store, *rows)
    (finding,) = find(store)
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h1")


@pytest.mark.parametrize("open_s", [-1.8, -0.5])
def test_first_moments_of_a_job_tell_no_pace(store: Store, open_s: float) -> None:
    """What is open may have begun before the first row that any host wrote."""
    opened_ns = T0 + round(open_s * SECOND)
    rows = [progress(rank, at_s, (2, 2, at_s + 1), oldest_open_ns=opened_ns) for rank in (0, 1) for at_s in (-1, 0)]
    insert(store, member(0), member(1), *rows)
    assert read(store, period_ns=None).period_ns is None
    assert find(store, period_ns=None) == []


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


PERIOD = SECOND // 100


def ended(rank: int, seq: int, at_s: float) -> Collective:
    end_ns = T0 + round(at_s * SECOND)
    told = {"comm": 1, "func": "AllReduce", "peer": -1, "seq": seq, "seq_valid": True, "rank": rank}
    return make(Collective, host=f"h{rank}", enqueue_ns=end_ns - 100, end_ns=end_ns, **told)


def recording() -> list[HostRecord]:
    """Rank 0 waits in operation 5 for two seconds; rank 1 ended operation 4 then, and has nothing open."""
    waiting = {"head_state": "recv_wait", "head_peer": 1, "oldest_open_ns": T0 - 2 * SECOND}
    rows = [progress(0, -3, (2, 2, 1)), progress(1, -3, (2, 2, 1))]
    rows += [progress(0, 0, (5, 5, 4), **waiting), progress(1, 0, (4, 4, 4))]
    return [member(0), member(1), *rows]


def test_line_with_nothing_open_stands_since_its_last_operation_ended(store: Store) -> None:
    insert(store, *recording(), ended(0, 3, -2.1), ended(1, 2, -2.5), ended(1, 3, -2.1))
    assert read(store, period_ns=PERIOD).lines.since_ns.tolist() == [T0 - 2 * SECOND, T0 - round(2.1 * SECOND)]
    (finding,) = find(store, period_ns=PERIOD)
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h1")


def test_row_of_an_older_operation_tells_nothing(store: Store) -> None:
    insert(store, *recording(), ended(1, 2, -2.5))
    assert read(store, period_ns=PERIOD).lines.since_ns.tolist() == [T0 - 2 * SECOND, T0]
    assert find(store, period_ns=PERIOD) == []


def hang() -> list[HostRecord]:
    waits = {"head_state": "recv_wait", "oldest_open_ns": T0 - 8 * SECOND}
    rows = [progress(rank, at_s, (5, 5, 4), head_peer=1 - rank, **waits) for rank in (0, 1) for at_s in range(-8, 1)]
    return [member(0), member(1), *rows]


def step(rank: int, direction: str, number: int, **told: Any) -> StepSample:
    """A step of the open operation that ended on one side."""
    usual: dict[str, Any] = {"host": f"h{rank}", "comm": 1, "seq": 4, "rank": rank, "channel": 2, "peer": 1 - rank}
    usual |= dict.fromkeys(("posted_ns", "wire_ns", "done_ns"), T0 - 8 * SECOND)
    return make(StepSample, **usual | {"direction": direction, "step": number, "bytes": 8} | told)


def test_ended_steps_are_counted_on_either_side(store: Store) -> None:
    insert(store, *hang(), step(0, "send", 0), step(0, "send", 1), step(1, "recv", 0), step(1, "recv", 0))
    steps = read(store).steps
    told = {(int(r), bool(s)): int(n) for r, s, n in zip(steps.rank, steps.sends, steps.steps, strict=True)}
    assert told == {(0, True): 2, (1, False): 1}
    assert (set(steps.seq.tolist()), set(steps.channel.tolist())) == ({4}, {2})


def test_steps_of_finished_operations_and_of_graphs_are_left_out(store: Store) -> None:
    insert(store, *hang(), step(0, "send", 0, seq=1), step(0, "send", 0, replay=3), step(0, "send", 0, comm=2))
    assert len(read(store).steps) == 0


def test_nics_of_each_host_are_told(store: Store) -> None:
    nics = [("h0", "eth0"), ("h0", "eth0"), ("h1", "eth0"), ("h1", "eth1")]
    unplaced = {"comm": None, "rank": None, "peer": None, "channel": None, "transport": "socket"}
    insert(store, *hang(), *(make(Connection, host=host, nic=nic, **unplaced) for host, nic in nics))
    assert read(store).nics == {"h0": ("eth0",), "h1": ("eth0", "eth1")}


def test_rank_stands_since_the_newest_step_of_its_open_operation_ended(store: Store) -> None:
    ends = {"posted_ns": T0 - 8 * SECOND, "wire_ns": T0 - SECOND}
    insert(store, *hang(), step(0, "send", 0), step(0, "send", 1, done_ns=T0 - SECOND, **ends))
    lines = date_by_steps(read(store)).lines
    stood_ns = dict(zip(lines.rank.tolist(), (T0 - lines.since_ns).tolist(), strict=True))
    assert stood_ns[0] == SECOND
    assert stood_ns[1] > 3 * SECOND, "of it no step is known"


def test_job_whose_data_still_moves_in_one_long_operation_does_not_hang(store: Store) -> None:
    moving = [step(rank, "send", number, done_ns=T0 - SECOND) for rank in (0, 1) for number in (0, 1)]
    insert(store, *hang(), *moving)
    assert find(store) == []
