"""JobSets and nodes as values: which way a restart goes, and what comes out of it."""

import contextlib
from typing import Any

import pytest

from lockstep.errors import BadInput, ControllerDown
from planner.controllers import kubernetes_jobsets as jobsets
from planner.controllers.kubernetes import ISOLATED, Isolated, read_isolation, view_node
from planner.controllers.kubernetes_jobsets import read_state, recreate
from planner.controllers.protocol import Restart
from tests.planner.controllers.fake_kubernetes import JOBSETS, KEEPERS, FakeKubernetes, Object, expect, load, make

ORDER = Restart("mark-1", "train/llm")
NOTE = '{"mark": "mark-1", "reason": "xid 79", "cordon": true}'


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def workers(jobset: Object) -> Object:
    """Return the template of the pods of a JobSet."""
    template: Object = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def avoids(*nodes: str) -> Object:
    return {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [*nodes]}


def test_conditions_tell_the_state() -> None:
    made = load("jobset")
    for kind, state in (("RestartingJobSet", "running"), ("Failed", "failed"), ("Completed", "ended")):
        made["status"]["conditions"].append({"type": kind, "status": "True"})
        assert read_state(made) == state
        made["status"]["conditions"].pop()
    del made["status"]
    assert read_state(made) == "waiting"


def test_jobset_is_recreated_where_suspending_is_not_enough_and_left_alone_where_it_is_managed_elsewhere() -> None:
    made = load("jobset")
    assert jobsets.choose_method(made, Restart("mark-1", "llm", nnodes=2), None)[0] == "suspend"
    assert jobsets.choose_method(made, Restart("mark-1", "llm", nnodes=3), None)[0] == "recreate"
    made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    made["spec"]["suspend"] = True
    assert jobsets.find_objection(made) is None
    assert jobsets.choose_method(made, ORDER, None) == ("recreate", "Kueue owns its suspension")
    made["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert jobsets.find_objection(made) == "it is managed by kueue.x-k8s.io/multikueue, from another cluster"


def test_nodes_are_counted_only_where_it_is_clear_whose_pods_they_are() -> None:
    made = load("jobset")
    assert jobsets.count_nodes(made, None) == 2
    made["spec"]["replicatedJobs"].append(made["spec"]["replicatedJobs"][0] | {"name": "launcher"})
    assert [jobsets.count_nodes(made, name) for name in (None, "workers", "nobody")] == [None, 2, None]


def test_job_per_node_changes_its_replicas() -> None:
    made = load("jobset")
    replicated = made["spec"]["replicatedJobs"][0]
    replicated["replicas"] = 4
    replicated["template"]["spec"] |= {"parallelism": 1, "completions": 1}
    again = recreate(made, Restart("mark-1", "llm", nnodes=3), None)["spec"]["replicatedJobs"][0]
    assert (again["replicas"], again["template"]["spec"]["parallelism"]) == (3, 1)


def test_every_alternative_of_an_affinity_avoids_the_node() -> None:
    made = load("jobset")
    zones = [{"key": "zone", "operator": "In", "values": [name]} for name in ("a", "b")]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in zones]}
    workers(made)["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: terms}}
    again = recreate(made, Restart("mark-1", "llm", exclude=("gpu-2", "gpu-1")), None)
    found = workers(again)["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in found] == [[zone, avoids("gpu-1", "gpu-2")] for zone in zones]


def test_recreated_jobset_carries_nothing_that_the_server_made_and_leaves_the_old_one_alone() -> None:
    made = recreate(load("jobset"), ORDER, None)
    assert "status" not in made
    assert set(made["metadata"]) == {"name", "namespace", "labels", "annotations"}
    assert made["metadata"]["annotations"] == {"lockstep.dev/mark": "mark-1"}
    assert "suspend" not in made["spec"]
    before = load("jobset")
    jobsets.suspend_patch(before, Restart("mark-1", "llm", checkpoint="/c"))
    recreate(before, Restart("mark-1", "llm", exclude=("gpu-1",), nnodes=1, checkpoint="/c"), None)
    assert before == load("jobset")


def test_isolation_is_ours_with_our_taint_alone() -> None:
    node = load("node")
    node["metadata"]["annotations"][ISOLATED] = NOTE
    assert read_isolation(node) is None, "a person has taken taint and cordon away: what they did holds"
    assert view_node(node).is_usable
    node["spec"]["unschedulable"] = True
    assert read_isolation(node) is None, "the cordon is somebody else's"
    node["spec"]["taints"].append({"key": ISOLATED, "value": "mark-1", "effect": "NoSchedule"})
    assert read_isolation(node) == Isolated("mark-1", "xid 79", is_cordon_ours=True)
    node["metadata"]["annotations"][ISOLATED] = "{"
    isolated = read_isolation(node)
    assert isolated is not None
    assert (isolated.mark, isolated.is_cordon_ours) == ("mark-1", False)
    assert view_node(node).reason == "isolated under mark-1"
    assert not view_node(node).is_usable


pytest.importorskip("kubernetes.client", reason="needs the extra lockstep[kubernetes]")

RESTART = Restart("mark-1", "train/llm", checkpoint="/c/step-400")


def test_job_is_seen_with_its_nodes_and_restarts_or_the_missing_right_to_look(api: Any, fake: FakeKubernetes) -> None:
    view = make(api).job("train/llm")
    assert view is not None
    assert (view.id, view.state, view.nodes, view.restarts) == ("train/llm", "running", ("gpu-1", "gpu-2"), 1)
    assert make(api, namespace="train").job("llm") is not None
    fake.faults["GET"] = [403]
    with pytest.raises(ControllerDown, match="does not describe JobSet train/llm: told to fail"):
        make(api).job("train/llm")


def test_restart_suspends_and_resumes_with_the_checkpoint_in_annotations(fake: FakeKubernetes, api: Any) -> None:
    fake.looks_until_stopped = 3
    report = make(api).restart(RESTART)
    expect(report, "done", "suspended and resumed")
    jobset = fake.objects[JOBSETS]["llm"]
    assert (report.job, jobset["spec"]["suspend"]) == ("train/llm", False)
    assert workers(jobset)["metadata"]["annotations"] == {"lockstep.dev/LOCKSTEP_RESUME_FROM": "/c/step-400"}
    expect(make(api).restart(RESTART), "already")
    assert [one for one in fake.requests if one.startswith("PATCH")] == [f"PATCH {JOBSETS}/llm"] * 2
    expect(make(api).restart(Restart("mark-2", "train/llm")), "done")
    annotations = workers(fake.objects[JOBSETS]["llm"])["metadata"]["annotations"]
    assert annotations == {"lockstep.dev/LOCKSTEP_RESUME_FROM": ""}


def test_restart_whose_pods_do_not_stop_in_time_is_gone_on_with(fake: FakeKubernetes, api: Any) -> None:
    fake.looks_until_stopped = 1_000
    expect(make(api, timeout_s=3).restart(RESTART), "failed", "have not stopped yet")
    assert fake.objects[JOBSETS]["llm"]["spec"]["suspend"] is True
    fake.looks["llm"] = 0
    expect(make(api).restart(RESTART), "done")
    assert fake.objects[JOBSETS]["llm"]["spec"]["suspend"] is False


def test_restart_tries_once_more_after_a_conflict(fake: FakeKubernetes, api: Any) -> None:
    fake.somebody_writes_before_patch = 1
    expect(make(api).restart(RESTART), "done")
    fake.somebody_writes_before_patch = 2
    expect(make(api).restart(Restart("mark-2", "train/llm")), "failed", "all the time")


def test_failed_jobset_is_created_again(fake: FakeKubernetes, api: Any) -> None:
    fail(fake)
    before = fake.objects[JOBSETS]["llm"]["metadata"]["uid"]
    expect(make(api).restart(RESTART), "done", "deleted and created again")
    made = fake.objects[JOBSETS]["llm"]
    assert made["metadata"]["uid"] != before
    assert made["metadata"]["labels"] == {"team": "nlp"}
    env = {one["name"]: one["value"] for one in workers(made)["spec"]["containers"][0]["env"]}
    assert env == {"NCCL_DEBUG": "INFO", "LOCKSTEP_RESUME_FROM": "/c/step-400"}
    assert fake.objects[KEEPERS] == {}
    expect(make(api).restart(RESTART), "already")


def test_other_number_of_nodes_is_created_again_away_from_excluded_ones(fake: FakeKubernetes, api: Any) -> None:
    make(api).isolate("gpu-1", "mark-1", "xid 79")
    expect(make(api).restart(Restart("mark-1", "train/llm", exclude=("gpu-1",), nnodes=1)), "done", "created again")
    made = fake.objects[JOBSETS]["llm"]
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (1, 1)
    terms = workers(made)["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [avoids("gpu-1")]}]}


@pytest.mark.parametrize("dies_at", range(1, 10))
def test_planner_that_dies_while_recreating_loses_nothing(fake: FakeKubernetes, api: Any, dies_at: int) -> None:
    """Whichever request is its last, the next planner ends what was begun, and creates one JobSet."""
    die_while_recreating(fake, api, dies_at)
    assert make(api).restart(RESTART).is_good
    assert list(fake.objects[JOBSETS]) == ["llm"]
    assert fake.objects[JOBSETS]["llm"]["metadata"]["annotations"]["lockstep.dev/mark"] == "mark-1"
    assert fake.objects[KEEPERS] == {}
    assert fake.requests.count(f"POST {JOBSETS}") == 1


def fail(fake: FakeKubernetes, kind: str = "Failed") -> None:
    fake.objects[JOBSETS]["llm"]["status"]["conditions"].append({"type": kind, "status": "True"})


def die_while_recreating(fake: FakeKubernetes, api: Any, requests: int) -> None:
    """Begin to create a failed JobSet again; let the fake answer so many requests and not see those that follow."""
    fail(fake)
    left = iter(range(requests))

    def once(method: str, path: str, body: Object) -> tuple[int, Object]:
        is_dead = next(left, None) is None
        return (503, {"message": "dead"}) if is_dead else FakeKubernetes.answer(fake, method, path, body)

    fake.answer = once  # type: ignore[method-assign]  # the fake is ours to break
    with contextlib.suppress(ControllerDown):
        make(api).restart(RESTART)
    del fake.__dict__["answer"]


def test_restart_that_makes_no_sense_or_would_do_harm_is_refused(fake: FakeKubernetes, api: Any) -> None:
    with pytest.raises(BadInput, match="cannot run on 0 nodes"):
        make(api).restart(Restart("m", "train/llm", nnodes=0))
    assert fake.requests == []
    order = Restart("mark-1", "train/llm", exclude=("gpu-2",))
    expect(make(api).restart(order), "refused", "node gpu-2 is excluded but still takes new work")
    jobset = fake.objects[JOBSETS]["llm"]
    jobset["spec"]["suspend"] = True
    expect(make(api).restart(RESTART), "refused", "somebody has suspended it")
    fail(fake, "Completed")
    expect(make(api).restart(RESTART), "refused", "it has ended by itself")
    jobset["metadata"]["ownerReferences"] = [{"kind": "TrainJob", "name": "llm", "controller": True}]
    expect(make(api).restart(RESTART), "refused", "belongs to TrainJob llm")
    expect(make(api).reattempt("train/llm", "mark-1"), "refused", "restart it instead")
    assert all(one.startswith("GET") for one in fake.requests)


def test_dry_restart_says_the_way_and_changes_nothing(fake: FakeKubernetes, api: Any) -> None:
    expect(make(api, dry_run=True).restart(RESTART), "would", "suspend", "is enough")
    order = Restart("mark-1", "train/llm", environment={"TP": "2"})
    expect(make(api, dry_run=True).restart(order), "would", "recreate", "do not read TP from their annotations")
    assert all(one.startswith("GET") for one in fake.requests)


def test_damaged_note_is_left_for_a_person(fake: FakeKubernetes, api: Any) -> None:
    die_while_recreating(fake, api, 3)
    (kept,) = fake.objects[KEEPERS].values()
    kept["data"] = {}
    with pytest.raises(ControllerDown, match="is damaged: look at it, then delete it"):
        make(api).restart(RESTART)
