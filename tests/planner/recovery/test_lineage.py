"""A job is known by all names it has had, however often it was submitted again."""

from lockstep.execution import Execution
from planner.recovery.lineage import has_moved_on, names_of, newest_name


def run(job: str, new_job: str | None) -> Execution:
    return Execution(
        decision=f"d-{job}",
        incident="i1",
        job=job,
        action="replace",
        component="host:h3",
        state="done",
        generation=1,
        approved_by="policy",
        began_ns=0,
        new_job=new_job,
    )


def test_names_go_back_to_the_first() -> None:
    runs = [run("102", "103"), run("101", "102"), run("7", "8")]
    assert names_of("103", runs) == ("103", "102", "101")
    assert names_of("9", runs) == ("9",)


def test_names_go_on_to_the_newest() -> None:
    runs = [run("102", "103"), run("101", "102"), run("7", None)]
    assert [newest_name(job, runs) for job in ("101", "103", "7")] == ["103", "103", "7"]


def test_job_that_keeps_its_name_and_rings_of_names_end() -> None:
    assert names_of("101", [run("101", "101")]) == ("101",)
    assert names_of("a", [run("a", "b"), run("b", "a")]) == ("a", "b")
    assert newest_name("a", [run("a", "b"), run("b", "a")]) == "b"


def test_job_that_was_started_under_another_name_has_moved_on() -> None:
    assert has_moved_on("101", [run("101", "102")])
    assert not has_moved_on("101", [run("101", "101"), run("101", None)])
