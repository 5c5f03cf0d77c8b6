"""A place of a communicator table means what its process had there at that time, whoever else is asked with it."""

import numpy as np

from collector.nccl.communicators import CommunicatorHistory, HostCommunicators
from tests.collector.nccl.readings import Array, communicator, stacked


def history_of(*members: Array) -> CommunicatorHistory:
    history = CommunicatorHistory()
    for member in members:
        history.update(stacked(member.dtype, [member]))
    return history


def ids_at(comms: HostCommunicators, *asked: tuple[int, int, int]) -> list[int | None]:
    """Return the communicators of processes at places and times."""
    whose, indices, ticks = np.array(asked).T
    members, found = comms.members_at(whose, indices, ticks.astype(np.uint64))
    return [one if known else None for one, known in zip(members["id"].tolist(), found.tolist(), strict=True)]


def test_indexs_of_several_processes_are_not_mixed_up() -> None:
    comms = HostCommunicators([history_of(communicator(id=1)), history_of(), history_of(communicator(id=3, index=2))])
    assert ids_at(comms, (0, 0, 9), (1, 0, 9), (2, 2, 9), (2, 0, 9), (0, 2, 9)) == [1, None, 3, None, None]


def test_index_that_served_many_is_what_it_was_at_the_time() -> None:
    many = [communicator(incarnation=n, id=n, init_ticks=100 * n) for n in range(1, 21)]
    comms = HostCommunicators([history_of(communicator(id=99)), history_of(*many)])
    asked = [(1, 0, ticks) for ticks in range(0, 2200, 50)]
    assert ids_at(comms, *asked) == [min(ticks // 100, 20) or None for _, _, ticks in asked]
    members, found = comms.latest(np.array([1, 0]), np.array([0, 0]))
    assert (members["id"].tolist(), found.tolist()) == ([20, 99], [True, True])


def test_table_is_known_to_be_outdated_when_one_of_its_processes_has_a_new_communicator() -> None:
    histories = [history_of(communicator()), history_of()]
    comms = HostCommunicators(histories)
    assert comms.is_of(histories)
    histories[1].update(communicator(id=8))
    assert not comms.is_of(histories)
