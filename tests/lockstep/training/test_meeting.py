"""Who is given up, who is let in, and what becomes of orders: files and beats, no process and no waiting."""

from collections.abc import Collection
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.in_job import Answer, Generation, JobFolder, Order, answer_name, order_name
from lockstep.training.meeting import Meeting, Patience, TrainingOptions


def meeting(folder: Path, replica: int, least: int = 1) -> Meeting:
    return Meeting(TrainingOptions(folder, "train", replica, 3, 6, f"h{replica}", least, silence_s=1.0))


def beat(*living: Meeting, times: int = 1) -> None:
    for _ in range(times):
        for each in living:
            each.beat()


def begun(*made: Meeting) -> list[Meeting]:
    for _ in range(2):
        beat(*made)
        for each in made:
            each.begin(0.0)
    assert all(each.move_on() for each in made)
    return list(made)


@pytest.fixture
def three(tmp_path: Path) -> list[Meeting]:
    return begun(*(meeting(tmp_path, replica) for replica in range(3)))


def members(generation: Generation | None) -> list[int]:
    assert generation is not None
    return [member.replica for member in generation.members]


def tend(*living: Meeting, unresponsive: Collection[Meeting] = (), **how: bool) -> Generation:
    """Let the living look, and return the newest generation."""
    for each in living:
        each.beat()
        each.tend(Patience(1.0, 2.0), unresponsive=[other.me for other in unresponsive], **how)
    for each in living:
        each.move_on()
    assert living[0].now is not None
    return living[0].now


def order(three: list[Meeting], act: str = "drop_replica", node: str = "h1", generation: int = 1) -> Answer:
    given = Order.model_validate({"mark": "d1", "act": act, "nodes": (node,), "generation": generation})
    three[0].folder.write_first(order_name(given), given)
    for _ in range(2):
        tend(*three)
    answer = three[0].folder.read(answer_name(given), Answer)
    assert answer is not None
    return answer


def test_the_first_generation_has_all_replicas(three: list[Meeting]) -> None:
    assert members(three[2].now) == [0, 1, 2]
    assert tend(*three) == Generation(number=1, members=tuple(each.me for each in three), cause="the job starts")


def test_silence_of_so_many_own_beats_gives_a_replica_up_and_a_shorter_one_does_not(three: list[Meeting]) -> None:
    first, lost, last = three
    tend(*three)
    tend(first, last)
    beat(first, last, times=2)
    assert members(tend(first, last)) == [0, 1, 2]
    found = tend(first, last)
    assert (members(found), found.cause) == ([0, 2], "lost: replica 1 on h1")
    lost.move_on()
    assert not lost.is_member


def test_who_hangs_with_the_folder_gives_nobody_up_and_the_next_one_proposes_for_it(three: list[Meeting]) -> None:
    tend(*three)
    beat(*three[1:], times=20)  # while the first is stopped, or its folder does not answer
    assert members(tend(three[0])) == [0, 1, 2]
    tend(*three)
    beat(*three[1:], times=5)
    assert members(tend(*three[1:])) == [1, 2]


def test_a_new_process_of_a_lost_replica_is_let_in_once_it_is_seen_to_live(three: list[Meeting]) -> None:
    first, lost, last = three
    again = meeting(first.folder.path, 1)
    again.beat()
    assert members(tend(first, last)) == [0, 2], "the file names another process: the old one is gone"
    again.begin(waited_s=0.0)
    assert not again.move_on() or not again.is_member
    tend(first, last, takes_new=True)
    again.beat()
    found = tend(first, last, takes_new=True)
    assert found.holds(again.me)
    assert not found.holds(lost.me)


def test_a_process_that_was_given_up_is_let_in_when_it_has_seen_that(three: list[Meeting]) -> None:
    first, lost, last = three
    tend(*three)
    tend(first, last)
    beat(first, last, times=5)
    assert members(tend(first, last)) == [0, 2]
    for _ in range(3):
        lost.beat()  # its thread does, before its loop looks
        assert members(tend(first, last, takes_new=True)) == [0, 2]
    assert lost.move_on()
    assert (lost.is_member, lost.was_left_out) == (False, True)
    lost.beat()
    found = tend(first, last, takes_new=True)
    assert (members(found), found.cause) == ([0, 1, 2], "joins: replica 1 on h1")


@pytest.mark.parametrize("number", [0, 1])
def test_who_beats_and_does_not_answer_is_given_up_and_not_let_in_while_its_training_hangs(
    three: list[Meeting], number: int
) -> None:
    unresponsive, others = three[number], [each for each in three if each is not three[number]]
    beat(*three, times=10)
    found = tend(*others, unresponsive=[unresponsive])
    assert found.members == tuple(each.me for each in others)
    assert found.cause == f"lives and does not answer: replica {number} on h{number}"
    for _ in range(3):
        unresponsive.beat()
        assert tend(*others, takes_new=True) == found
    assert tend(*others, is_broken=True).members == found.members, (
        "nor is it when there is another reason for a generation"
    )


def test_whoever_should_make_a_generation_and_does_not_is_given_up_with_the_next_in_turn(
    three: list[Meeting],
) -> None:
    unresponsive, _, last = three
    tend(*three)
    for _ in range(4 + 7):
        unresponsive.beat()
        assert members(tend(last)) == [0, 1, 2], "after 4 beats one is silent, and the first has 8 to say so"
    unresponsive.beat()
    found = tend(last)
    assert members(found) == [2]
    assert found.cause == "lost: replica 1 on h1; lives and does not answer: replica 0 on h0"


def test_whose_turn_it_is_has_as_long_in_each_generation(three: list[Meeting]) -> None:
    first, second, last = three
    for _ in range(8):
        beat(first, last)
        assert members(tend(second, is_broken=True)) == [0, 1, 2]
    again = tend(first, second, is_broken=True)
    for _ in range(8):
        beat(first, last)
        assert tend(second, is_broken=True) == again
    beat(first, last)
    assert members(tend(second, is_broken=True)) == [1, 2]


def test_a_broken_connection_between_the_living_makes_a_generation_of_the_same(three: list[Meeting]) -> None:
    tend(*three)
    found = tend(*three, is_broken=True)
    assert (found.number, members(found)) == (2, [0, 1, 2])


def test_an_order_takes_a_replica_out_which_may_return_only_when_it_is_admitted(three: list[Meeting]) -> None:
    answer = order(three)
    assert (answer.outcome, answer.message) == ("done", "generation 2 goes on with 2 replicas")
    for _ in range(3):
        assert members(tend(*three, takes_new=True)) == [0, 2]
    assert order(three, "admit", generation=2).outcome == "done"
    assert members(tend(*three, takes_new=True)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "outcome", "says"),
    [
        ({"node": "h7"}, "already", "no replica of generation 1 is on h7"),
        ({"generation": 0}, "refused", "it is for generation 0, and this is 1"),
        ({"act": "recycle"}, "refused", "this job cannot recycle"),
    ],
)
def test_an_order_that_does_not_fit_changes_nothing(
    three: list[Meeting], given: dict[str, str], outcome: str, says: str
) -> None:
    answer = order(three, **given)  # type: ignore[arg-type]  # of a table
    assert (answer.outcome, answer.message) == (outcome, says)
    assert members(three[0].now) == [0, 1, 2]


def test_an_order_that_would_leave_too_few_is_refused(tmp_path: Path) -> None:
    made = begun(*(meeting(tmp_path, replica, least=3) for replica in range(3)))
    assert order(made).message == "2 replicas would be left, and 3 are needed"


def worker(folder: Path, replica: int, stage: int) -> Meeting:
    node = f"h{2 * replica + stage}"
    return Meeting(TrainingOptions(folder, "train", replica, 2, 4, node, silence_s=1.0, stage=stage, stages=2))


def test_a_pipeline_goes_on_while_each_stage_has_a_worker(tmp_path: Path) -> None:
    made = begun(*(worker(tmp_path, replica, stage) for replica in range(2) for stage in range(2)))
    assert order(made, "recycle").message == "generation 2 goes on with 3 workers"
    refused = order(made, "recycle", "h3", generation=2)
    assert refused.message == "0 replicas of stage 1 would be left, and 1 are needed"
    first, _, other, _ = made
    tend(first, other)
    beat(first, other, times=5)
    assert tend(first, other).number == 2, "nobody is left who has the last one's stage: it is waited for"


def test_processes_of_a_job_that_starts_again_wait_for_those_of_before_and_then_for_all(three: list[Meeting]) -> None:
    folder = three[0].folder.path
    again = [meeting(folder, replica) for replica in (0, 1)]
    for each in again:
        each.move_on()
    for waited_s in (0.0, 10.0):
        beat(*again, times=4)
        for each in again:
            each.begin(waited_s)
    assert JobFolder(folder).newest_generation() == three[0].now, "one is missing"
    third = meeting(folder, 2)
    third.move_on()
    for _ in range(2):
        beat(*again, third)
        again[0].begin(10.0)
    assert members(JobFolder(folder).newest_generation()) == [0, 1, 2]


def test_a_job_in_which_replicas_have_nothing_to_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="replica=0 of replicas=3 with least=1 and micro_batches=2"):
        TrainingOptions(tmp_path, "train", 0, 3, 2)
