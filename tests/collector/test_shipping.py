"""The queue is bounded, keeps its order, and counts what it had to drop."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from collector.shipping import Batch, MemoryQueue

LIMIT = 100


def batch(number: int, size: int = 10, rows: int = 1) -> Batch:
    return Batch("boot", number, b"x" * size, rows)


def test_empty_queue_has_no_first() -> None:
    assert MemoryQueue(LIMIT).first() is None


def test_first_is_the_oldest_and_stays_until_it_is_removed() -> None:
    queue, oldest, newer = MemoryQueue(LIMIT), batch(1), batch(2)
    queue.put(oldest)
    queue.put(newer)
    assert queue.first() is oldest
    assert queue.first() is oldest
    queue.remove(oldest)
    assert queue.first() is newer
    assert (queue.bytes, queue.dropped_rows) == (10, 0)


def test_full_queue_drops_the_oldest_and_counts_its_rows() -> None:
    queue = MemoryQueue(LIMIT)
    for number in range(1, 12):
        queue.put(batch(number, size=10, rows=3))
    first = queue.first()
    assert first is not None
    assert first.number == 2
    assert (queue.bytes, queue.dropped_rows) == (100, 3)


def test_batch_larger_than_the_queue_drops_all_others_and_stays() -> None:
    queue, large = MemoryQueue(LIMIT), batch(3, size=LIMIT + 1, rows=7)
    queue.put(batch(1, rows=2))
    queue.put(batch(2, rows=3))
    queue.put(large)
    assert queue.first() is large
    assert (queue.bytes, queue.dropped_rows) == (LIMIT + 1, 5)


def test_receipt_for_a_batch_that_was_dropped_meanwhile_removes_nothing() -> None:
    queue, lost, kept = MemoryQueue(LIMIT), batch(1, size=60), batch(2, size=60)
    queue.put(lost)
    queue.put(kept)
    queue.remove(lost)
    assert queue.first() is kept
    assert queue.bytes == 60


def test_refused_batch_is_gone_and_its_rows_are_counted_as_lost() -> None:
    queue, refused = MemoryQueue(LIMIT), batch(1, rows=4)
    queue.put(refused)
    queue.refuse(refused)
    queue.refuse(refused)
    assert queue.first() is None
    assert (queue.bytes, queue.dropped_rows) == (0, 4)


class QueueAgainstAList(RuleBasedStateMachine):
    """Whatever is put, removed and refused, the queue holds what a plain list with the same rules holds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = MemoryQueue(LIMIT)
        self.expected: list[Batch] = []
        self.ever: list[Batch] = []
        self.dropped = 0

    @rule(size=st.integers(0, 2 * LIMIT), rows=st.integers(0, 9))
    def put(self, size: int, rows: int) -> None:
        new = batch(len(self.ever) + 1, size, rows)
        self.ever.append(new)
        self.expected.append(new)
        self.queue.put(new)
        while sum(len(kept.body) for kept in self.expected) > LIMIT and len(self.expected) > 1:
            self.dropped += self.expected.pop(0).rows

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.ever))
        self.queue.remove(done)
        if self.expected[:1] == [done]:
            self.expected.pop(0)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        refused = data.draw(st.sampled_from(self.ever))
        self.queue.refuse(refused)
        if self.expected[:1] == [refused]:
            self.dropped += self.expected.pop(0).rows

    @invariant()
    def agrees(self) -> None:
        assert self.queue.first() == (self.expected[0] if self.expected else None)
        assert self.queue.bytes == sum(len(kept.body) for kept in self.expected)
        assert self.queue.bytes <= LIMIT or len(self.expected) == 1
        assert self.queue.dropped_rows == self.dropped


TestQueueAgainstAList = QueueAgainstAList.TestCase
