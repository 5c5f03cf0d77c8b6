"""A lost submission is made again when it surely never came, and left to a person when nobody can know."""

from hypothesis import given
from hypothesis import strategies as some

from lockstep.clock import NS_PER_S
from planner.controllers.slurm_commands import LOOKED, SUBMITTING, judge_arrival
from planner.controllers.slurm_jobs import SlurmTimes

TIMES = SlurmTimes()


def note(called_s: float, looked_s: float | None = None) -> dict[str, str]:
    reported = {"job": "2", SUBMITTING: str(round(called_s * NS_PER_S))}
    return reported | ({LOOKED: str(round(looked_s * NS_PER_S))} if looked_s is not None else {})


def judge(reported: dict[str, str], now_s: float, times: SlurmTimes = TIMES) -> str:
    return judge_arrival(reported, "d-1", times, round(now_s * NS_PER_S)).state


def test_an_answer_is_waited_for_twice_the_time_a_command_waits_by_looks_closer_than_slurms_memory() -> None:
    assert judge({"job": "2"}, 1000) == "absent"
    assert judge(note(100), 119) == "open"
    assert judge(note(100), 120) == "absent"
    assert judge(note(100), 139, SlurmTimes(answer_s=20)) == "open"
    assert judge(note(100), 400) == "unknowable"
    assert judge(note(100, looked_s=399), 698) == "absent"
    assert judge(note(100), 100_000, SlurmTimes(memory_s=0)) == "absent", "this Slurm never forgets"


@given(some.integers(0, 20), some.integers(0, 60), some.integers(1, 900), some.integers(1, 600))
def test_a_job_that_came_is_never_taken_for_absent(arrives_s: int, lives_s: int, gap_s: int, memory_s: int) -> None:
    """Play a slurmctld that takes the request late, and a planner that looks every so often and may submit again."""
    times, reported, now_s = SlurmTimes(memory_s=memory_s), note(0), 0
    while now_s < 2000:
        now_s += gap_s
        if arrives_s <= now_s < arrives_s + lives_s + memory_s:
            return  # it is found
        state = judge(reported, now_s, times)
        assert state != "absent", f"submitted a second time after {now_s} s"
        if state == "unknowable":
            return
        reported[LOOKED] = str(round(now_s * NS_PER_S))
    raise AssertionError("it waits for ever")
