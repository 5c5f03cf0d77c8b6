"""The outbox is bounded, keeps its order, and counts what it had to drop."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from collector.outbox import MemoryOutbox
from collector.parcel import Parcel

LIMIT = 100


def parcel(number: int, size: int = 10, rows: int = 1) -> Parcel:
    return Parcel("boot", number, b"x" * size, rows)


def test_empty_outbox_has_no_first() -> None:
    assert MemoryOutbox(LIMIT).first() is None


def test_first_is_the_oldest_and_stays_until_it_is_removed() -> None:
    outbox, oldest, newer = MemoryOutbox(LIMIT), parcel(1), parcel(2)
    outbox.put(oldest)
    outbox.put(newer)
    assert outbox.first() is oldest
    assert outbox.first() is oldest
    outbox.remove(oldest)
    assert outbox.first() is newer
    assert (outbox.bytes, outbox.dropped_rows) == (10, 0)


def test_full_outbox_drops_the_oldest_and_counts_its_rows() -> None:
    outbox = MemoryOutbox(LIMIT)
    for number in range(1, 12):
        outbox.put(parcel(number, size=10, rows=3))
    first = outbox.first()
    assert first is not None
    assert first.number == 2
    assert (outbox.bytes, outbox.dropped_rows) == (100, 3)


def test_parcel_larger_than_the_outbox_drops_all_others_and_stays() -> None:
    outbox, large = MemoryOutbox(LIMIT), parcel(3, size=LIMIT + 1, rows=7)
    outbox.put(parcel(1, rows=2))
    outbox.put(parcel(2, rows=3))
    outbox.put(large)
    assert outbox.first() is large
    assert (outbox.bytes, outbox.dropped_rows) == (LIMIT + 1, 5)


def test_receipt_for_a_parcel_that_was_dropped_meanwhile_removes_nothing() -> None:
    outbox, lost, kept = MemoryOutbox(LIMIT), parcel(1, size=60), parcel(2, size=60)
    outbox.put(lost)
    outbox.put(kept)
    outbox.remove(lost)
    assert outbox.first() is kept
    assert outbox.bytes == 60


def test_refused_parcel_is_gone_and_its_rows_are_counted_as_lost() -> None:
    outbox, refused = MemoryOutbox(LIMIT), parcel(1, rows=4)
    outbox.put(refused)
    outbox.refuse(refused)
    outbox.refuse(refused)
    assert outbox.first() is None
    assert (outbox.bytes, outbox.dropped_rows) == (0, 4)


class OutboxAgainstAList(RuleBasedStateMachine):
    """Whatever is put, removed and refused, the outbox holds what a plain list with the same rules holds."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = MemoryOutbox(LIMIT)
        self.expected: list[Parcel] = []
        self.ever: list[Parcel] = []
        self.dropped = 0

    @rule(size=st.integers(0, 2 * LIMIT), rows=st.integers(0, 9))
    def put(self, size: int, rows: int) -> None:
        new = parcel(len(self.ever) + 1, size, rows)
        self.ever.append(new)
        self.expected.append(new)
        self.outbox.put(new)
        while sum(len(kept.body) for kept in self.expected) > LIMIT and len(self.expected) > 1:
            self.dropped += self.expected.pop(0).rows

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.ever))
        self.outbox.remove(done)
        if self.expected[:1] == [done]:
            self.expected.pop(0)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        refused = data.draw(st.sampled_from(self.ever))
        self.outbox.refuse(refused)
        if self.expected[:1] == [refused]:
            self.dropped += self.expected.pop(0).rows

    @invariant()
    def agrees(self) -> None:
        assert self.outbox.first() == (self.expected[0] if self.expected else None)
        assert self.outbox.bytes == sum(len(kept.body) for kept in self.expected)
        assert self.outbox.bytes <= LIMIT or len(self.expected) == 1
        assert self.outbox.dropped_rows == self.dropped


TestOutboxAgainstAList = OutboxAgainstAList.TestCase
