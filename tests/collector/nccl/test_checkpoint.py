"""A checkpoint comes back as it was, and whatever else is read as one is nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.checkpoint import Checkpoint, FileMemory, decode, encode
from collector.nccl.communicators import Origin
from collector.nccl.draining import Cursor
from collector.nccl.snapshot import AggregatorState

HANDLES = np.array([1, (1 << 64) - 1], np.uint64)
ORIGIN = Origin("h0", "job 7", attempt=2, pid=5, gpu=None)
MEMORY = FileMemory(1000, ORIGIN, [Cursor(), Cursor(9, 12)], AggregatorState(3, 4096, HANDLES, HANDLES[:0]))


def test_checkpoint_comes_back_as_it_was() -> None:
    given_back = decode(encode(Checkpoint(7, 4096, {(1, 2, 3): MEMORY})))
    assert (given_back.since_ns, given_back.share) == (7, 4096)
    memory = given_back.files[1, 2, 3]
    assert (memory.uid, memory.origin, memory.position) == (MEMORY.uid, MEMORY.origin, MEMORY.position)
    assert (memory.aggregator.now_ns, memory.aggregator.share) == (3, 4096)
    assert np.array_equal(memory.aggregator.pending, HANDLES)
    assert len(memory.aggregator.written) == 0


def test_checkpoint_of_another_version_is_nothing() -> None:
    assert decode(encode(Checkpoint(7)).replace(b'"version":1', b'"version":2')) == Checkpoint()


@given(st.binary(max_size=200), st.integers(0, 400))
def test_broken_checkpoint_is_nothing(noise: bytes, index: int) -> None:
    whole = encode(Checkpoint(7, 4096, {(1, 2, 3): MEMORY}))
    assert decode(noise) == Checkpoint()
    assert isinstance(decode(whole[:index] + noise + whole[index + len(noise) :]), Checkpoint)
