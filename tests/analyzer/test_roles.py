"""Roles come out of who talks to whom; no layout is told."""

import numpy as np

from analyzer.straggler.excess import Roles, find_roles

Row = tuple[int, int, int, int, bool]  # process, communicator, rank, peer, whether it sends


def roles(rows: list[Row], processes: int) -> Roles:
    process, comm, rank, peer, sends = (np.array(column) for column in zip(*rows, strict=True))
    return find_roles(process, comm.astype(np.uint64), rank, peer, sends, processes)


def collective(comm: int, members: list[int]) -> list[Row]:
    return [(process, comm, rank, -1, False) for rank, process in enumerate(members)]


def moved(comm: int, members: list[int], src: int, dst: int) -> list[Row]:
    return [(members[src], comm, src, dst, True), (members[dst], comm, dst, src, False)]


def chain(comm: int, members: list[int]) -> list[Row]:
    """Return what goes down a pipeline and back up, eight times."""
    ways = [(index, index + 1) for index in range(len(members) - 1)]
    once = [row for src, dst in ways for row in moved(comm, members, src, dst) + moved(comm, members, dst, src)]
    return once * 8


def test_stages_of_several_pipelines_have_a_role_each() -> None:
    found = roles(chain(1, [0, 2, 4, 6]) + chain(2, [1, 3, 5, 7]), 8).role_of
    assert [found[first] == found[first + 1] for first in (0, 2, 4, 6)] == [True] * 4
    assert len(set(found.tolist())) == 4


def test_a_ring_and_an_exchange_make_no_stages() -> None:
    members = [0, 1, 2, 3]
    ring = [row for index in members for row in moved(1, members, index, (index + 1) % 4)]
    exchange = [row for src in members for dst in members if src != dst for row in moved(1, members, src, dst)]
    assert set(roles(ring * 8, 4).role_of.tolist()) == {0}
    assert set(roles(exchange * 8, 4).role_of.tolist()) == {0}


def test_a_ring_that_one_place_feeds_less_is_a_pipeline() -> None:
    # The last stage of an interleaved pipeline hands over to the first one, but seldom.
    members = [0, 1, 2, 3]
    rows = [row for index in range(3) for row in moved(1, members, index, index + 1)] * 16
    assert len(set(roles(rows + moved(1, members, 3, 0) * 4, 4).role_of.tolist())) == 4


def test_communicators_whose_members_lie_alike_are_a_family() -> None:
    rows = collective(1, [0, 1]) + collective(2, [2, 3]) + collective(3, [0, 2]) + collective(4, [1, 3])
    tensor, other_tensor, data, other_data = roles(rows, 4).family_of[::2].tolist()
    assert tensor == other_tensor
    assert data == other_data
    assert tensor != data


def test_without_sends_all_have_the_same_role() -> None:
    found = roles(collective(1, [0, 1, 2, 3]), 4)
    assert set(found.role_of.tolist()) == {0}
    assert not found.is_chain.any()
