"""The waiting is followed over all communicators, to who waits for nobody."""

from analyzer.hang.waits import MOST_BEHIND
from tests.analyzer.hang.build import Job, line, world
from tests.builders import SECOND, T0

PAIR = 9  # a communicator of ranks 1 and 3


def test_rank_that_never_entered_is_the_origin() -> None:
    waits = Job(lines=world(r2=line(2, (4, 4, 4)))).trace()
    assert waits.origins.tolist() == [2]
    assert waits.waiting.tolist() == [True, True, False, True]
    assert not waits.stuck


def test_rank_that_waits_elsewhere_hands_the_blame_on() -> None:
    lines = [*world(r1=line(1, (4, 4, 4)), r3=line(3, (4, 4, 4)))]
    pair = [line(0, (8, 8, 7), comm=PAIR, process=1), line(1, (7, 7, 7), comm=PAIR, process=3)]
    waits = Job(comms={PAIR: [1, 3]}, lines=[*lines, *pair]).trace()
    assert waits.origins.tolist() == [3], "rank 1 is ahead of everybody in another communicator, and waits there"


def test_rank_that_moves_is_waited_for_and_not_blamed() -> None:
    waits = Job(lines=world(r2=line(2, (4, 4, 4), since_ns=T0))).trace()
    assert (waits.origins.tolist(), waits.circling.tolist()) == ([], [])


def test_operation_that_all_have_entered_is_stuck() -> None:
    (stuck,) = Job(lines=world()).trace().stuck
    assert (stuck.number, stuck.members.tolist()) == (5, [0, 1, 2, 3])


def test_ranks_that_left_an_operation_wait_in_the_next_for_those_stuck_in_it() -> None:
    waits = Job(lines=world(r0=line(0, (6, 6, 5)), r1=line(1, (6, 6, 5)))).trace()
    (stuck,) = waits.stuck
    assert (stuck.number, stuck.members.tolist()) == (5, [2, 3])
    assert waits.origins.tolist() == []


def test_two_orders_of_entering_are_a_circle() -> None:
    lines = world(r1=line(1, (4, 4, 4)), r3=line(3, (5, 5, 4)))
    pair = [line(0, (8, 8, 7), comm=PAIR, process=1), line(1, (7, 7, 7), comm=PAIR, process=3)]
    waits = Job(comms={PAIR: [1, 3]}, lines=[*lines, *pair]).trace()
    assert waits.circling.tolist() == [1, 3], "ranks 0 and 2 wait for the circle, and nobody waits for them"
    assert waits.origins.tolist() == []


def test_different_functions_at_the_same_place_are_a_circle() -> None:
    other = line(2, (5, 5, 4), func="AllGather")
    lines = [*world(r2=line(2, (4, 4, 4))), other, *(line(rank, (4, 4, 4), func="AllGather") for rank in (0, 1, 3))]
    assert Job(lines=lines).trace().circling.tolist() == [0, 1, 2, 3]


def test_rank_without_any_line_of_a_function_never_began_it() -> None:
    lines = [line(rank, (1, 1, 0), func="Broadcast") for rank in range(3)] + [line(3, (4, 4, 4))]
    assert Job(lines=lines).trace().origins.tolist() == [3]


def test_send_and_receive_are_counted_per_peer() -> None:
    send = line(0, (3, 3, 2), func="Send", peer=1)
    others = [line(1, (9, 9, 9), func="Recv", peer=2), line(1, (2, 2, 2), func="Recv", peer=0)]
    assert Job(lines=[send, *others]).trace().origins.tolist() == [1]


def test_receive_of_something_that_nobody_sends_waits_for_the_sender() -> None:
    lines = [line(0, (1, 1, 0), func="Recv", peer=3), line(3, (4, 4, 4))]
    assert Job(lines=lines).trace().origins.tolist() == [3]


def test_counts_that_began_at_another_moment_are_not_compared() -> None:
    far = MOST_BEHIND + 10
    lines = [line(rank, (far, far, far - 1)) for rank in range(3)] + [line(3, (4, 4, 4))]
    waits = Job(lines=lines).trace()
    assert (waits.origins.tolist(), waits.stuck, waits.circling.tolist()) == ([], (), [])


def test_counts_of_a_stopped_process_are_not_believed() -> None:
    """Rank 3 seems to be inside operation 3, but nobody could have ended 4 without its having left that."""
    waits = Job(lines=world(r3=line(3, (4, 3, 2)))).trace()
    assert waits.frozen.tolist() == [False, False, False, True]
    assert waits.origins.tolist() == [3]


def test_members_of_whom_nothing_is_heard_are_waited_for() -> None:
    waits = Job(lines=world()[:2]).trace()
    assert (waits.missing.tolist(), waits.origins.tolist()) == ([2, 3], [])


def test_rank_that_is_heard_and_behind_comes_before_those_not_heard() -> None:
    waits = Job(lines=[*world()[:2], line(2, (4, 4, 4), seen_ns=T0, since_ns=T0 - 9 * SECOND)]).trace()
    assert (waits.origins.tolist(), waits.missing.tolist()) == ([2], [])
