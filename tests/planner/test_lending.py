"""A job that cannot go on alone borrows a node of one that is worth less, if persons let both."""

from dataclasses import replace
from pathlib import Path

from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import list_decisions
from lockstep.control.incidents import list_incidents, save_incidents
from lockstep.control.leases import Lease
from lockstep.decision import Mode
from tests.planner.recovery.build import SAVED, crash, incident, seconds
from tests.planner.site import LINEAR, Site, make_unequal


def make_hit(tmp_path: Path, control: ControlDatabase, lease: Lease, mode: Mode) -> Site:
    """Return a site in which train+1 needs its seven nodes and has just lost h5, while chat could give one."""
    site = make_unequal(tmp_path, control, lease, mode)
    site.reader.tables = {"train": {7: 56.0, 8: 64.0}, "chat": {1: 8.0, 2: 16.0}}
    site.reader.least = {"train": 7}
    site.run(100)
    fault = crash(job="train+1", component="host:h5", last_seen_ns=seconds(110), since_ns=seconds(105))
    save_incidents(control, [incident(fault, name="i2", opened_s=106)], None)
    return site


def approve_all(site: Site) -> None:
    for each in list_decisions(site.control, incident="i2"):
        site.say(each, "approve", 112)


def test_job_that_cannot_go_on_borrows_a_node_of_one_that_is_worth_less(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_hit(tmp_path, control, lease, "execute")
    site.run(111)
    give, take = (
        next(each for each in list_decisions(control, incident="i2") if each.job == job)
        for job in ("chat", "train+1")
    )
    assert (give.action, give.target, give.mode) == ("reconfigure", {"nnodes": 1}, "propose")
    assert (take.action, take.target, take.mode) == ("replace", {"nnodes": 7}, "propose")
    assert take.after == (give.id,)
    assert take.part_of == give.part_of is not None
    assert [part.node for part in take.isolate] == ["h5"]
    assert "is lent by chat" in take.reason
    assert take.all_jobs is not None
    approve_all(site)
    for at in range(112, 140):
        site.run(at)
    acts = [act.split(" on ")[0] for act in site.controller.world.acts]
    assert acts == ["restart chat", "isolate h5", "restart train+1"]


def test_job_with_an_answer_of_its_own_does_not_wait_for_others(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_hit(tmp_path, control, lease, "execute")
    site.reader.tables["train"] = LINEAR
    site.reader.least = {}
    site.run(111)
    (own,) = list_decisions(control, incident="i2")
    assert (own.job, own.action, own.mode, own.part_of) == ("train+1", "reconfigure", "execute", None)


def test_decision_about_a_fault_says_when_its_plan_was_looked_up(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_hit(tmp_path, control, lease, "observe")
    site.run(111)
    found = list_decisions(control, incident="i2")
    assert all("(looked up: worked out 11 s before the event)" in each.reason for each in found)


def test_job_in_trouble_gives_nothing(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    site = make_hit(tmp_path, control, lease, "execute")
    theirs = crash(job="chat", component="host:h9", last_seen_ns=seconds(110), since_ns=seconds(105))
    save_incidents(control, [incident(theirs, name="i3", opened_s=106)], None)
    site.run(111)
    assert {each.job for each in list_decisions(control, incident="i2")} == {"train+1"}


def test_lender_gives_once_it_has_saved_the_checkpoint_that_it_waits_for(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_hit(tmp_path, control, lease, "execute")
    site.reader.next_save_s = 300.0
    site.run(111)
    waits = {each.job: (each.waits_until_ns, each.expires_ns) for each in list_decisions(control, incident="i2")}
    assert waits == {"chat": (seconds(411), seconds(441)), "train+1": (None, seconds(441))}
    approve_all(site)
    site.reader.resume, site.reader.next_save_s = replace(SAVED, age_s=30.0), 570.0
    assert [act.split(" on ")[0] for act in site.run_all(441, 480)] == ["restart chat", "restart train+1"]
    give = next(each for each in list_decisions(control, incident="i2") if each.job == "chat")
    assert "act now: acting now does 30 s of work again" in give.reason, "the other job stands still meanwhile"


def test_nobody_lends_to_a_job_whose_incident_is_over(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    site = make_hit(tmp_path, control, lease, "execute")
    site.run(111)
    approve_all(site)
    (hit,) = [each for each in list_incidents(control) if each.id == "i2"]
    healed = {"state": "closed", "closed_ns": seconds(112), "closed_because": "it healed"}
    save_incidents(control, [hit.model_copy(update=healed)], None)
    assert site.run_all(113, 140) == []
