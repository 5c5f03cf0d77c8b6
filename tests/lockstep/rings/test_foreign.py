"""What a process did for another one is given to that one, by process and handle."""

from dataclasses import replace

import numpy as np

from lockstep.rings.folding import Folder
from lockstep.rings.foreign import join_foreign
from tests.builders import T0
from tests.lockstep.rings.readings import (
    IDENTITY,
    MS,
    ORIGIN,
    communicator,
    enqueued,
    handle,
    reading,
    step,
    transfer,
)

HELPER, OWNER = replace(IDENTITY, pid=1, tag=0x11), replace(IDENTITY, pid=2, tag=0x22)


def their(number: int) -> int:
    return handle(number, OWNER.tag)


def folders() -> tuple[Folder, Folder]:
    """Return the folders of a process that helps and of one whose operations 1 and 2 it helps with."""
    helper, owner = Folder(ORIGIN), Folder(replace(ORIGIN, host="h9"))
    parts = [
        transfer(operation=their(1), pid=2),
        transfer(operation=their(3), pid=2),
        transfer(operation=their(1), pid=5),
    ]
    helper.fold(reading(*parts, step(operation=their(2)), identity=HELPER), T0 + 10 * MS)
    mine = [enqueued(number, operation=their(number)) for number in (1, 2)]
    owner.fold(reading(*mine, comms=[communicator(rank=3)], identity=OWNER), T0 + 10 * MS)
    return helper, owner


def test_transfer_and_step_get_the_rank_and_operation_of_their_owner() -> None:
    helper, owner = folders()
    assert helper.foreign is not None
    tables, rest = join_foreign(helper.foreign, [helper.owner(HELPER), owner.owner(OWNER)])
    (moved,), (stepped,) = tables["transfers"].to_pylist(), tables["step_samples"].to_pylist()
    assert (moved["host"], moved["rank"], moved["seq"], moved["first_ns"]) == ("h9", 3, 1, T0 + 2 * MS)
    assert (stepped["rank"], stepped["seq"]) == (3, 2)
    assert (rest.transfers["operation"].tolist(), rest.transfers["pid"].tolist()) == ([their(3), their(1)], [2, 5])
    assert len(rest.steps) == 0


def test_what_finds_no_owner_is_left() -> None:
    helper, _ = folders()
    assert helper.foreign is not None
    tables, rest = join_foreign(helper.foreign, [])
    assert tables == {}
    assert np.array_equal(rest.transfers, helper.foreign.transfers)
    assert np.array_equal(rest.steps, helper.foreign.steps)
