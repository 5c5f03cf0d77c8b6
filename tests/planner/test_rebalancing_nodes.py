"""Only sound nodes are given to jobs, however late they come back: none that an incident or a drain is on."""

from dataclasses import replace
from pathlib import Path

from lockstep.control.database import ControlDatabase
from lockstep.control.executions import save_execution
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease
from lockstep.incident import Incident
from planner.recovery.facts import JobFacts
from planner.recovery.reading import Sight
from tests.planner.recovery.build import SAVED, crash, incident, seconds
from tests.planner.site import FakeSurveyor, add_job, end_job, make_site, restarted

DAY_S = 86_400


def test_node_that_was_out_for_days_goes_back_to_its_job(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease)
    for at_s in (100, 3 * DAY_S):
        site.run(at_s)
    site.bring_back(at_s=3 * DAY_S + 1)
    site.run(3 * DAY_S + 20)
    assert [(each.job, each.trigger) for each in site.plans()] == [("train+1", "node h3 joined")]


class Surveyor(FakeSurveyor):
    """Also remembers where a job that is over has run."""

    def read(self, incident: Incident, now_ns: int) -> Sight:
        if not self.is_over(incident.job):
            return super().read(incident, now_ns)
        view = self.survey(now_ns)
        nodes = tuple(self.controller.world.jobs[incident.job]["nodes"])
        return Sight(JobFacts(incident.job, nodes=nodes, gpus=8, is_over=True), view.cluster, view.jobs)


def test_node_that_an_open_incident_names_is_given_to_nobody(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", surveyor=Surveyor)
    add_job(site, "chat", ["h9"])
    site.run(100)
    blamed = crash(job="chat", component="gpu:h9/0", last_seen_ns=seconds(105), since_ns=seconds(104))
    save_incidents(control, [incident(blamed, name="i9", opened_s=105)], None)
    end_job(site, "chat")
    assert site.run_all(111, 120) == []
    assert site.plans() == []


def test_spare_that_is_promised_to_one_job_is_not_given_to_another(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, spares=("h8",))
    replaced = restarted("chat", "chat+1", at_s=99).model_copy(update={"action": "replace"})
    save_execution(control, replaced, lease)
    assert [site.run(at_s) for at_s in (100, 111, 122)] == [0, 0, 0]
    assert site.run(800) == 1, "who sends nothing for so long does not run"
    assert [(each.job, each.trigger) for each in site.plans()] == [("train+1", "node h8 joined")]


def test_job_with_a_node_that_somebody_drains_is_not_restarted_to_grow(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.run(100)
    world = site.controller.world
    del world.nodes["h8"], world.nodes["h9"]
    site.controller.save(world)
    site.controller.isolate("h0", "admin", "maintenance")
    site.bring_back()
    assert site.run_all(111, 120) == []
    assert site.controller.world.jobs["train+1"]["state"] == "running", "restarted, it would have seven nodes again"


def test_grow_that_has_waited_for_a_checkpoint_waits_for_no_other(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.reader.tables["train"] = {7: 63.5, 8: 64.0}  # so little is won that waiting always pays

    def run(at_s: int) -> None:
        site.reader.resume = replace(SAVED, age_s=float(at_s % 1800))
        site.reader.next_save_s = 1800.0 - at_s % 1800
        site.run(at_s)

    run(100)
    site.bring_back()
    run(111)
    (grow,) = site.plans()
    assert grow.waits_until_ns == seconds(1800)
    for at_s in range(121, 1851, 10):
        run(at_s)
    (grow,) = site.plans()
    assert grow.reason.endswith("; it has waited for the checkpoint that is there now")
    assert site.controller.world.acts[-1] == "restart train+1 on h0,h1,h2,h3,h4,h5,h6,h7"
