"""The Slurm controller over slurmrestd: what that offers goes there, the rest to the commands, and means the same."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import ControllerDown, ControllerRefused
from planner.controllers.protocol import JobView
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmOptions
from planner.controllers.slurm_jobs import SlurmNode
from planner.controllers.slurm_rest import NOBODY_BEHIND, find_offer, read_errors, read_jobs, read_nodes
from tests.planner.controllers.fake_slurm import RUNNING, SCRIPT, FakeSlurm, FakeSlurmrestd, recorded, serve
from tests.planner.controllers.test_slurm import ACTS, NO_KILL_WAIT, ORDER

ROOT = "/slurm/v0.0.38"


@pytest.fixture
def server() -> FakeSlurmrestd:
    fake = FakeSlurmrestd()
    fake.say("GET /openapi/v3", recorded("openapi"))
    fake.say(f"GET {ROOT}/nodes", recorded("nodes"))
    fake.say(f"GET {ROOT}/jobs", recorded("jobs"))
    fake.say(f"GET {ROOT}/job/2", recorded("job_running"))
    for node in recorded("nodes")["nodes"]:
        fake.say(f"GET {ROOT}/node/{node['name']}", {"errors": [], "nodes": [node]})
    fake.say(f"GET {ROOT}/node/n9", recorded("node_unknown"), 500)
    fake.say(f"GET {ROOT}/job/4711", recorded("job_unknown"), 500)
    return fake


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm").install()
    fake.say("scontrol-show-job", RUNNING)
    fake.say("scontrol-write-batch_script", SCRIPT)
    fake.say("sbatch", "17\n")
    return fake


@pytest.fixture
def options(server: FakeSlurmrestd, slurm: FakeSlurm, tmp_path: Path) -> Iterator[SlurmOptions]:
    (tmp_path / "token").write_text("SLURM_JWT=abc.def\n")
    with serve(server) as url:
        yield replace(slurm.options(), rest=url, rest_token_file=tmp_path / "token", rest_user="planner")


def test_nodes_and_jobs_are_read(options: SlurmOptions, server: FakeSlurmrestd, slurm: FakeSlurm) -> None:
    controller = SlurmController(options)
    assert [(node.name, node.mark) for node in controller.nodes()] == [
        *(("n1", "d-17"), ("n2", None), ("n3", None), ("n4", None))
    ]
    assert controller.job("2") == JobView("2", "running", ("n2", "n3"), mark="d-17")
    assert controller.job("4711") is None
    report = controller.restart(replace(ORDER, mark="d-17", job="1"))
    assert (report.outcome, report.job) == ("already", "2"), "found by its mark"
    assert server.asked.count("GET /openapi/v3") == 1, "what it offers is asked once"
    assert server.headers["X-SLURM-USER-TOKEN"] == "abc.def"
    assert server.headers["X-SLURM-USER-NAME"] == "planner"
    assert slurm.calls() == []


def test_what_cannot_drain_leaves_it_to_scontrol(
    options: SlurmOptions, server: FakeSlurmrestd, slurm: FakeSlurm
) -> None:
    report = SlurmController(options).isolate("n3", "d-18", "slow")
    assert (report.outcome, report.what) == ("failed", "n3 was to be drained and is ALLOCATED")
    assert slurm.calls() == ["scontrol update NodeName=n3 State=DRAIN Reason=lockstep d-18: slow"]
    assert SlurmController(options).isolate("n1", "d-17", "slow").outcome == "already"
    assert SlurmController(options).isolate("n9", "d-17", "slow").what == "Slurm knows no node n9"


def test_a_version_that_can_drain_does(options: SlurmOptions, server: FakeSlurmrestd, slurm: FakeSlurm) -> None:
    document = recorded("openapi")
    document["paths"][f"{ROOT}/node/{{node_name}}"]["post"] = {}
    server.say("GET /openapi/v3", document)
    server.say(f"POST {ROOT}/node/n3", {"errors": []})
    server.say(f"POST {ROOT}/node/n1", {"errors": []})
    SlurmController(options).isolate("n3", "d-18", "slow")
    SlurmController(options).release("n1", "d-17")
    assert server.bodies == [{"state": ["DRAIN"], "reason": "lockstep d-18: slow"}, {"state": ["UNDRAIN"]}]
    assert slurm.calls() == []


def test_a_job_is_cancelled_over_slurmrestd(options: SlurmOptions, server: FakeSlurmrestd, slurm: FakeSlurm) -> None:
    server.say(f"DELETE {ROOT}/job/2", recorded("cancelled"))
    slurm.say("scontrol-show-config", NO_KILL_WAIT)
    report = SlurmController(replace(options, grace_s=0)).restart(ORDER)
    assert (report.outcome, report.is_half_done) == ("failed", True), "it still runs"
    server.say(f"GET {ROOT}/job/2", recorded("job_unknown"), 500)
    report = SlurmController(options).restart(ORDER)
    assert report.what == "job 2 is cancelled and submitted again as job 17, to run without n1,n2"
    assert slurm.calls("scancel") == []
    assert server.asked.count(f"DELETE {ROOT}/job/2") == 1


def test_what_slurm_does_not_allow_is_said(options: SlurmOptions, server: FakeSlurmrestd) -> None:
    server.say(f"GET {ROOT}/node/n3", "Authentication failure", 401)
    report = SlurmController(options).isolate("n3", "d-18", "slow")
    assert report.outcome == "failed"
    assert "does not take planner: HTTP 401 Authentication failure" in report.what
    server.say(f"DELETE {ROOT}/job/2", recorded("cancel_denied"), 500)
    report = SlurmController(options).restart(ORDER)
    assert report.outcome == "failed"
    assert "Slurm does not allow it to planner, who must be an operator" in report.what


def test_a_controller_that_is_down_is_raised(options: SlurmOptions, server: FakeSlurmrestd) -> None:
    for path in ("nodes", "node/n1", "job/2", "jobs"):
        server.say(f"GET {ROOT}/{path}", recorded("down"), 500)
    for act in ACTS:
        with pytest.raises(ControllerDown, match="slurmctld does not answer, or the token is wrong or has run out"):
            act(SlurmController(options))


def test_nobody_or_nonsense_is_raised(options: SlurmOptions, server: FakeSlurmrestd, tmp_path: Path) -> None:
    for address in ("unix:///nowhere/slurmrestd.socket", "http://127.0.0.1:9"):
        with pytest.raises(ControllerDown, match=f"slurmrestd at {address} does not answer"):
            SlurmController(replace(options, rest=address)).nodes()
    with pytest.raises(ControllerDown, match="the token for slurmrestd cannot be read"):
        SlurmController(replace(options, rest_token_file=tmp_path / "none")).nodes()
    server.say(f"GET {ROOT}/nodes", "<html>proxy</html>", 502)
    with pytest.raises(ControllerDown, match="answers HTTP 502"):
        SlurmController(options).nodes()


def test_after_an_upgrade_it_is_asked_anew(options: SlurmOptions, server: FakeSlurmrestd) -> None:
    controller = SlurmController(options)
    controller.nodes()
    server.answers = {
        request.replace("v0.0.38", "v0.0.44"): (status, text.replace("v0.0.38", "v0.0.44"))
        for request, (status, text) in server.answers.items()
    }
    with pytest.raises(ControllerDown, match="no longer has GET nodes"):
        controller.nodes()
    assert len(controller.nodes()) == 4


def document(*versions: str) -> dict[str, Any]:
    """Return an OpenAPI document in which each version reads nodes and jobs."""
    reads = ("nodes", "node/{node_name}", "jobs", "job/{job_id}")
    return {"paths": {f"/slurm/{version}/{path}/": {"get": {}} for version in versions for path in reads}}


def test_the_newest_version_that_reads_is_taken_and_what_it_lacks_is_seen() -> None:
    offer = find_offer(recorded("openapi"))
    assert offer.root == "/slurm/v0.0.38"
    assert ("delete", "job/{job_id}") in offer.calls
    assert ("post", "node/{node_name}") not in offer.calls, "22.05 cannot drain"
    assert find_offer(document("v0.0.9", "v0.0.40", "v0.0.39")).root == "/slurm/v0.0.40"
    paths = document("v0.0.38")["paths"] | {"/slurm/v0.0.41/ping/": {"get": {}}}
    assert find_offer({"paths": paths}).root == "/slurm/v0.0.38"
    for paths in ({}, {"/slurm/v0.0.38/ping": {"get": {}}}, {"/slurmdb/v0.0.38/jobs": {"get": {}}}):
        with pytest.raises(ControllerRefused, match="offers no API that reads nodes and jobs"):
            find_offer({"paths": paths})


def test_jobs_are_seen_as_scontrol_shows_them_and_nodes_with_who_drained_them() -> None:
    nodes = {node.name: node for node in read_nodes(recorded("nodes"))}
    assert [node.is_usable for node in nodes.values()] == [False, False, True, False]
    assert (nodes["n2"].who, nodes["n2"].why, nodes["n2"].mark) == ("root", "fan [left] broken, Ticket=4711", None)
    assert (nodes["n3"], nodes["n4"].states) == (SlurmNode("n3", frozenset({"ALLOCATED"})), frozenset({"DOWN"}))
    assert read_jobs(recorded("job_running"))[0].user == "root"
    (job,) = read_jobs(recorded("job_completing"))
    assert (job.state, job.as_view().state) == ("running", "waiting")
    assert [(job.id, job.state) for job in read_jobs(recorded("job_array"))] == [("3", "waiting"), ("4", "running")]


def test_newer_shapes_mean_the_same() -> None:
    """From v0.0.39 on, by its sources: states are lists, moments are objects."""
    timestamp = {"set": True, "infinite": False, "number": 1794814652}
    reported = {"name": "n1", "state": ["IDLE", "DRAIN"], "reason": "lockstep d-1", "reason_changed_at": timestamp}
    (node,) = read_nodes({"nodes": [reported | {"reason_set_by_user": "root"}]})
    assert (node.mark, node.who, node.when) == ("d-1", "root", "2026-11-16T07:37:32Z")
    job = {"job_id": 7, "job_state": ["CANCELLED", "COMPLETING"], "nodes": "n1", "restart_cnt": 0, "comment": ""}
    assert read_jobs({"jobs": [job]})[0].state == "running"
    assert read_jobs({"jobs": [job | {"job_state": ["CANCELLED"]}]})[0].state == "ended"


def test_complaints_are_told() -> None:
    messages = {
        "job_running": "",
        "node_unknown": "Invalid node name specified",
        "job_unknown": "Invalid job id specified: Unable to find JobId=4711",
        "cancel_denied": "unable to kill JobId=2 with signal 9: Access/permission denied",
        "down": NOBODY_BEHIND,
    }
    assert {name: read_errors(recorded(name)) for name in messages} == messages
    for answer in ({}, {"nodes": None}, {"nodes": [{"name": "n1"}]}, {"nodes": [{"state": "idle"}]}):
        with pytest.raises(ControllerRefused, match="cannot be understood: nodes"):
            read_nodes(answer)
