"""What Slurm really printed (tests/data/slurm) becomes the nodes, jobs and marks that it means."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from planner.controllers.protocol import JobView, Node
from planner.controllers.slurm_parsing import (
    SlurmTimes,
    find_marked,
    parse_jobs,
    parse_nodes,
    parse_times,
    read_mark,
    read_state,
    write_mark,
)

DATA = Path(__file__).parents[2] / "data" / "slurm"


def read(name: str) -> str:
    return (DATA / name).read_text()


def test_nodes_are_as_they_were_that_day_with_who_drained_them() -> None:
    seen = [node.as_node() for node in parse_nodes(read("nodes.txt"))]
    ours = "lockstep d-17: NIC eth0 sends at 0.4 of its rate, since = 03:12"
    assert seen == [
        Node("n1", False, "d-17", f"DRAIN+IDLE: {ours}", is_idle=True),
        Node("n2", False, None, "ALLOCATED+DRAIN: fan [left] broken, Ticket=4711", is_idle=False),
        Node("n3", True, is_idle=False),
        Node("n4", False, None, "DOWN: switched off", is_idle=False),
    ]
    other = parse_nodes(read("nodes.txt"))[1]
    assert (other.who, other.when) == ("root", "2026-11-16T03:32:24")


def test_times_are_as_configured_and_else_as_slurm_has_them() -> None:
    assert parse_times(read("config.txt")) == SlurmTimes(kill_wait_s=2, memory_s=300, answer_s=10)
    assert parse_times("MinJobAge = 0 sec\n") == SlurmTimes(30, 0, 10)
    assert parse_times("") == SlurmTimes(30, 300, 10)


def test_a_node_is_usable_when_new_work_may_start() -> None:
    usable = ["IDLE", "MIXED+PLANNED", "IDLE+CLOUD+POWERED_DOWN"]
    others = ["IDLE*", "DOWN*+DRAIN", "IDLE+NOT_RESPONDING", "MIXED+DRAIN", "IDLE+MAINTENANCE", "UNKNOWN"]
    lines = [f"NodeName=n1 Arch=x State={state} Weight=1" for state in (*usable, *others)]
    assert [node.is_usable for node in parse_nodes("\n".join(lines))] == [True] * 3 + [False] * 6


def test_jobs_are_as_they_were_that_day() -> None:
    (job,) = parse_jobs(read("job_running.txt"))
    assert job.as_view() == JobView("2", "running", ("n2", "n3"), restarts=0, mark="d-17")
    assert job.user == "root"
    assert job.fields["JobName"] == "train me"
    assert "QOS" not in job.fields, "(null) is no value"
    (job,) = parse_jobs(read("job_cancelled.txt"))
    assert job.as_view() == JobView("1", "ended", ("n2", "n3"), restarts=2, mark="d1")
    assert [(job.id, job.state) for job in parse_jobs(read("job_array.txt"))] == [("4", "running"), ("3", "waiting")]


def test_a_state_of_slurm_is_one_of_four() -> None:
    states = {
        "PENDING": "waiting",
        "COMPLETING": "running",
        "TIMEOUT": "failed",
        "REQUEUED": "waiting",
        "": "waiting",
    }
    assert {word: read_state(word) for word in states} == states
    for word in ("COMPLETING", "CONFIGURING"):  # one that ends or boots is not seen to run
        (job,) = parse_jobs(read("job_running.txt").replace("JobState=RUNNING", f"JobState={word}"))
        assert (job.state, job.as_view().state) == ("running", "waiting")


def test_newest_job_with_the_mark_is_found_in_the_queue() -> None:
    assert find_marked(read("queue.txt"), "d-17") == "2"
    assert find_marked(read("queue.txt"), "d-1") is None
    assert find_marked("9|CANCELLED|lockstep m\n10|RUNNING|lockstep m\n", "m") == "10"
    assert find_marked("9|RUNNING|lockstep m: resume from /a|b\n", "m") == "9"


def test_words_of_others_and_a_reason_that_outlived_its_drain_are_no_mark() -> None:
    for text in ("", "lockstep", "bad fan", "lockstepd-17: x", "by lockstep d-17", "lockstep a b"):
        assert read_mark(text) is None
    (node,) = parse_nodes("NodeName=n1 State=DOWN Reason=lockstep d-17: slow [root@2026-11-16T03:32:24]")
    assert node.mark is None
    assert node.why == "lockstep d-17: slow"


MARKS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True)


@given(MARKS, st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=60))
def test_a_mark_survives_whatever_the_reason_says(mark: str, reason: str) -> None:
    words = write_mark(mark, reason)
    (node,) = parse_nodes(f"NodeName=n1 State=IDLE+DRAIN Reason={words} [ada@2026-11-16T03:32:24]")
    assert (node.mark, node.who) == (mark, "ada")
