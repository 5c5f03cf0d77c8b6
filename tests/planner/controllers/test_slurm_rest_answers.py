"""What slurmrestd said, recorded from 22.05, and the other shapes in which newer ones say it."""

from typing import Any

import pytest

from lockstep.errors import ControllerSaidNo
from planner.controllers.protocol import JobView
from planner.controllers.slurm_parsing import SlurmNode
from planner.controllers.slurm_rest_answers import (
    NOBODY_BEHIND,
    find_offer,
    read_errors,
    read_jobs,
    read_nodes,
)
from tests.planner.controllers.fake_slurmrestd import recorded

READS: dict[str, Any] = {"nodes": {"get": {}}, "node/{node_name}": {"get": {}}, "jobs": {"get": {}}}


def document(*versions: str, **more: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI document in which each version reads nodes and jobs."""
    calls = READS | {"job/{job_id}": {"get": {}}} | more
    return {
        "paths": {f"/slurm/{version}/{path}/": methods for version in versions for path, methods in calls.items()}
    }


def test_the_newest_version_is_taken_and_what_it_lacks_is_seen() -> None:
    offer = find_offer(recorded("openapi"))
    assert offer.root == "/slurm/v0.0.38"
    assert ("delete", "job/{job_id}") in offer.calls
    assert ("post", "node/{node_name}") not in offer.calls, "22.05 cannot drain"


def test_versions_are_compared_as_numbers() -> None:
    assert find_offer(document("v0.0.9", "v0.0.40", "v0.0.39")).root == "/slurm/v0.0.40"


def test_a_newer_version_that_lacks_what_we_need_is_passed_over() -> None:
    paths = document("v0.0.38")["paths"] | {"/slurm/v0.0.41/ping/": {"get": {}}}
    assert find_offer({"paths": paths}).root == "/slurm/v0.0.38"


@pytest.mark.parametrize("paths", [{}, {"/slurm/v0.0.38/ping": {"get": {}}}, {"/slurmdb/v0.0.38/jobs": {"get": {}}}])
def test_without_a_version_that_reads_there_is_no_offer(paths: dict[str, Any]) -> None:
    with pytest.raises(ControllerSaidNo, match="offers no API that reads nodes and jobs"):
        find_offer({"paths": paths})


def test_nodes_are_read_with_who_drained_them() -> None:
    nodes = {node.name: node for node in read_nodes(recorded("nodes"))}
    assert [node.is_usable for node in nodes.values()] == [False, False, True, False]
    assert nodes["n1"].mark == "d-17"
    assert (nodes["n2"].who, nodes["n2"].why, nodes["n2"].mark) == ("root", "fan [left] broken, Ticket=4711", None)
    assert nodes["n4"].states == {"DOWN"}
    assert nodes["n3"] == SlurmNode("n3", frozenset({"ALLOCATED"}))


def test_a_job_is_seen_as_scontrol_shows_it() -> None:
    (job,) = read_jobs(recorded("job_running"))
    assert job.as_view() == JobView("2", "running", ("n2", "n3"), mark="d-17")
    assert job.user == "root"


def test_a_job_that_is_ending_has_not_ended() -> None:
    (job,) = read_jobs(recorded("job_completing"))
    assert (job.state, job.as_view().state) == ("running", "waiting")


def test_all_tasks_of_an_array_are_seen() -> None:
    assert [(job.id, job.state) for job in read_jobs(recorded("job_array"))] == [("3", "waiting"), ("4", "running")]


def test_newer_shapes_mean_the_same() -> None:
    """From v0.0.39 on, by its sources: states are lists, moments are objects."""
    moment = {"set": True, "infinite": False, "number": 1794814652}
    told = {"name": "n1", "state": ["IDLE", "DRAIN"], "reason": "lockstep d-1", "reason_changed_at": moment}
    (node,) = read_nodes({"nodes": [told | {"reason_set_by_user": "root"}]})
    assert (node.mark, node.who, node.when) == ("d-1", "root", "2026-11-16T07:37:32Z")
    job = {"job_id": 7, "job_state": ["CANCELLED", "COMPLETING"], "nodes": "n1", "restart_cnt": 0, "comment": ""}
    assert read_jobs({"jobs": [job]})[0].state == "running"
    assert read_jobs({"jobs": [job | {"job_state": ["CANCELLED"]}]})[0].state == "ended"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("job_running", ""),
        ("node_unknown", "Invalid node name specified"),
        ("job_unknown", "Invalid job id specified: Unable to find JobId=4711"),
        ("cancel_denied", "unable to kill JobId=2 with signal 9: Access/permission denied"),
        ("down", NOBODY_BEHIND),
    ],
)
def test_complaints_are_told(name: str, said: str) -> None:
    assert read_errors(recorded(name)) == said


@pytest.mark.parametrize("answer", [{}, {"nodes": None}, {"nodes": [{"name": "n1"}]}, {"nodes": [{"state": "idle"}]}])
def test_an_answer_that_makes_no_sense_is_said(answer: dict[str, Any]) -> None:
    with pytest.raises(ControllerSaidNo, match="cannot be understood: nodes"):
        read_nodes(answer)
