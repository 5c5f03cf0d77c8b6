"""In a recording with two rows of progress, the last operation of a line tells since when it stands."""

from lockstep.records import Collective, HostRecord
from lockstep.store.store import Store
from tests.analyzer.hang.stored import find, insert, member, progress, read
from tests.builders import SECOND, T0, make

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
