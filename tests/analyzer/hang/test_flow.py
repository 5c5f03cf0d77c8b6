"""Who is in an operation, and who has only queued it behind something older."""

from dataclasses import replace

import numpy as np

from analyzer.hang.facts import NO_STEPS, StepCounts
from analyzer.hang.flow import find_lost, find_queued, owes
from tests.analyzer.hang.build import WORLD, Job, line, steps_of

PAIR = 9


def job(steps: StepCounts = NO_STEPS) -> Job:
    """Rank 2 is inside a receive, and has enqueued operation 5 of the world behind it."""
    everybody = [line(rank, (5, 5, 4), state="recv_wait", open_ns=20) for rank in range(4)]
    receive = line(1, (3, 3, 2), comm=PAIR, process=2, func="Recv", peer=0, state="recv_wait", open_ns=10)
    send = line(0, (3, 3, 2), comm=PAIR, process=0, func="Send", peer=1, state="gpu_wait", open_ns=30)
    return Job(comms={PAIR: [0, 2]}, lines=[*everybody, receive, send], facts={"steps": steps})


def queued(of: Job) -> list[int]:
    facts = of.progress
    return np.flatnonzero(find_queued(facts, facts.lines, facts.lines.started > facts.lines.done)).tolist()


def test_operation_without_a_step_is_queued_behind_what_is_older() -> None:
    assert queued(job(steps_of((0, 1, 2, 0), (3, 0, 2, 2)))) == [2]


def test_rank_that_ended_a_step_is_in_the_operation_whatever_else_is_open() -> None:
    assert queued(job(steps_of((0, 1, 2, 0), (2, 3, 2, 2)))) == []


def test_nothing_is_queued_where_steps_are_not_recorded() -> None:
    assert queued(job()) == []
    assert queued(job(steps_of((0, 1, 2, 2), seq=3))) == []  # every second operation may be sampled


def test_two_recorded_operations_before_tell_that_this_one_would_be_too() -> None:
    before, earlier = steps_of((0, 1, 2, 2), seq=3), steps_of((0, 1, 2, 2), seq=2)
    both = {name: np.concatenate([getattr(before, name), getattr(earlier, name)]) for name in vars(before)}
    assert queued(job(StepCounts(**both))) == [2]


def test_the_oldest_of_a_process_is_never_queued() -> None:
    alone = job(steps_of((0, 1, 2, 0)))
    assert queued(replace(alone, lines=alone.lines[:4])) == []


def test_others_wait_for_who_queued_and_the_waiting_leads_to_what_keeps_it() -> None:
    waits = job(steps_of((0, 1, 2, 0), (3, 0, 2, 2))).trace()
    assert [waits.lines.func[each.members].tolist() for each in waits.stuck] == [["Recv", "Send"]]
    assert waits.lines.process[waits.behind].tolist() == [2]


def test_steps_in_flight_and_leads_are_told_by_channel() -> None:
    lost, leads = find_lost(steps_of((0, 1, 6, 0), (1, 0, 2, 2), channel=3), WORLD, "AllReduce", 4)
    assert [(edge.src, edge.dst, edge.channel) for edge in lost] == [(0, 1, 3)]
    assert leads == {3: {0: 4, 1: 2}}


def test_steps_of_other_operations_do_not_count() -> None:
    steps = steps_of((0, 1, 6, 0))
    assert find_lost(steps, WORLD, "AllReduce", 5) == ([], {})
    assert find_lost(steps, WORLD + 1, "AllReduce", 4) == ([], {})
    assert find_lost(steps, WORLD, "AllGather", 4) == ([], {})


def test_only_who_is_behind_all_others_owes() -> None:
    assert owes({0: 2, 1: 1, 2: 2}, 1, without=0)
    assert not owes({0: 2, 1: 2, 2: 2}, 1, without=0)
    assert owes({0: -1, 2: 2}, 1, without=0)  # it did nothing, and the one before it is held up by that
    assert not owes({0: 2, 1: 0}, 1, without=0)  # nobody is left to compare with
