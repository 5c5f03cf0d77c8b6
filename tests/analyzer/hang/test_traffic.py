"""Steps of open operations are read with who sent and who received them, and the NICs of hosts with a single one."""

from typing import Any

from analyzer.hang.flow import date_by_steps
from lockstep.records import Connection, HostRecord, StepSample
from lockstep.store.store import Store
from tests.analyzer.hang.stored import find, insert, member, progress, read
from tests.builders import SECOND, T0, make


def hang() -> list[HostRecord]:
    waits = {"head_state": "recv_wait", "oldest_open_ns": T0 - 8 * SECOND}
    rows = [progress(rank, at_s, (5, 5, 4), head_peer=1 - rank, **waits) for rank in (0, 1) for at_s in range(-8, 1)]
    return [member(0), member(1), *rows]


def step(rank: int, direction: str, number: int, **told: Any) -> StepSample:
    """A step of the open operation that ended on one side."""
    at_ns = T0 - 8 * SECOND
    usual: dict[str, Any] = {"host": f"h{rank}", "job": "j1", "attempt": 0, "comm": 1, "func": "AllReduce", "seq": 4}
    usual |= {"replay": 0, "epoch": 0, "rank": rank, "channel": 2, "peer": 1 - rank, "direction": direction}
    usual |= {"step": number, "nic": None, "sport": None, "bytes": 8}
    usual |= {"posted_ns": at_ns, "wire_ns": at_ns, "done_ns": at_ns}
    return StepSample(**(usual | told))


def test_ended_steps_are_counted_on_either_side(store: Store) -> None:
    insert(store, *hang(), step(0, "send", 0), step(0, "send", 1), step(1, "recv", 0), step(1, "recv", 0))
    steps = read(store).steps
    told = {(int(r), bool(s)): int(n) for r, s, n in zip(steps.rank, steps.sends, steps.steps, strict=True)}
    assert told == {(0, True): 2, (1, False): 1}
    assert (set(steps.seq.tolist()), set(steps.channel.tolist())) == ({4}, {2})


def test_steps_of_finished_operations_and_of_graphs_are_left_out(store: Store) -> None:
    insert(store, *hang(), step(0, "send", 0, seq=1), step(0, "send", 0, replay=3), step(0, "send", 0, comm=2))
    assert len(read(store).steps) == 0


def test_nic_is_told_of_hosts_that_use_only_one(store: Store) -> None:
    nics = [("h0", "eth0"), ("h0", "eth0"), ("h1", "eth0"), ("h1", "eth1")]
    unplaced = {"comm": None, "rank": None, "peer": None, "channel": None, "transport": "socket"}
    insert(store, *hang(), *(make(Connection, host=host, nic=nic, **unplaced) for host, nic in nics))
    assert read(store).only_nic == {"h0": "eth0"}


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
