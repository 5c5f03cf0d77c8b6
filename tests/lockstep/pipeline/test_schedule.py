"""Guests are shared out evenly, and a stage without copies is said to be lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.pipeline.schedule import Worker, find_load, share_guests
from tests.lockstep.pipeline.grids import EXAMPLE, ONE_GONE, failures_for, shapes


def test_six_guests_for_two_peers_are_three_each_and_a_stage_without_copies_is_lost() -> None:
    share = share_guests(EXAMPLE, ONE_GONE, 2)
    assert (share.live, share.each, share.more) == ((0, 2), 3, 0)
    assert [find_load(EXAMPLE, ONE_GONE, stage) for stage in range(4)] == [6, 6, 9, 6]
    with pytest.raises(BadInput, match="stage 3 has lost all 3 copies: no peer can stand in, only a restart"):
        share_guests(EXAMPLE, {Worker(pipeline, 3) for pipeline in range(3)}, 3)


@given(st.data())
def test_every_guest_has_a_peer(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    failed = data.draw(failures_for(shape))
    for stage in range(shape.stages):
        share = share_guests(shape, failed, stage)
        lost = shape.pipelines - len(share.live)
        assert len(share.live) * share.each + share.more == lost * shape.micro_batches
        assert share.more < len(share.live)
