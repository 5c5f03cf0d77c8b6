"""A job that was started again is the same job: its nodes are its own, and what was said of it still counts."""

from pathlib import Path

from lockstep.control.database import ControlDatabase
from lockstep.control.executions import save_execution
from lockstep.control.leases import Lease
from tests.planner.recovery.build import seconds
from tests.planner.site import NODES, Site, add_job, end_job, make_site, restarted

SEVEN = [node for node in NODES[:8] if node != "h3"]


def start_again(site: Site, at_s: float) -> None:
    """Let train+1 be started again on its nodes, as train+1+5."""
    end_job(site, "train+1")
    add_job(site, "train+1+5", SEVEN)
    save_execution(site.control, restarted("train+1", "train+1+5", at_s), site.lease)


def test_nodes_of_a_job_are_its_own_until_its_next_attempt_is_seen(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    add_job(site, "chat", ["h8", "h9"])
    site.run(100)
    end_job(site, "chat")
    add_job(site, "chat+9", ["h8", "h9"])
    site.reader.silent.add("chat+9")  # its first telemetry comes minutes later
    save_execution(control, restarted("chat", "chat+9", 105), lease)
    assert site.run_all(111, 120) == []
    assert site.plans() == []
    end_job(site, "chat+9")
    site.run(121)
    (grow,) = site.plans()
    assert grow.trigger == "node h8 joined, node h9 joined, job chat ended"


def test_job_that_was_just_started_again_settles_before_it_is_moved(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.run(100)
    site.bring_back()
    start_again(site, at_s=110)
    assert site.run_all(111, 130) == []
    assert site.run_all(171, 185) == ["restart train+1+5 on h0,h1,h2,h3,h4,h5,h6,h7"]


def test_rejection_holds_under_the_next_name_of_the_job(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", next_save_s=50.0)
    site.run(100)
    site.bring_back()
    site.run(111)
    (grow,) = site.plans()
    site.say(grow, "reject", 112)
    start_again(site, at_s=120)
    site.reader.next_save_s = None
    assert site.run_all(200, 230) == []
    held = next(each for each in site.plans() if each.job == "train+1+5")
    assert held.held_because == f"a person has undone or rejected decision {grow.id}, which was to grow train+1+5"


def test_approval_of_a_plan_that_expired_long_ago_approves_no_other(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="propose", next_save_s=50.0)
    add_job(site, "chat", ["h8"])
    site.run(100)
    end_job(site, "chat")
    site.run(111)
    (approved,) = site.plans()
    assert approved.waits_until_ns is not None
    site.say(approved, "approve", 112)
    site.controller.isolate("h8", "d9", "again")
    site.run(122)
    assert site.plans()[0].expires_ns == seconds(122)
    site.reader.next_save_s = None
    add_job(site, "other", ["h9"])
    site.run(7200)
    end_job(site, "other")  # the same plan as two hours ago
    assert site.run_all(7211, 7230) == []
    fresh = next(each for each in site.plans() if each.id != approved.id)
    assert (fresh.job, fresh.target, fresh.mode) == (approved.job, approved.target, "propose")
