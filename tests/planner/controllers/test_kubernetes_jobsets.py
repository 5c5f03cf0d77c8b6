"""JobSets and nodes as values: which way a restart goes, and what comes out of it."""

from typing import Any

import pytest

from planner.controllers.kubernetes_jobsets import (
    choose_way,
    count_nodes,
    find_objection,
    read_state,
    recreate,
    suspend_patch,
)
from planner.controllers.kubernetes_nodes import ISOLATED, Isolated, read_isolation, release_patch, view_node
from planner.controllers.protocol import Restart
from tests.planner.controllers.fake_kubernetes import Object, load

ORDER = Restart("mark-1", "train/llm")
NOTE = '{"mark": "mark-1", "reason": "xid 79", "cordon": true}'


def jobset(**spec: Any) -> Object:
    made = load("jobset")
    made["spec"] |= spec
    return made


def with_launcher() -> Object:
    made = load("jobset")
    launcher = load("jobset")["spec"]["replicatedJobs"][0] | {"name": "launcher"}
    made["spec"]["replicatedJobs"].append(launcher)
    return made


def one_job_per_node(replicas: int) -> Object:
    made = load("jobset")
    replicated = made["spec"]["replicatedJobs"][0]
    replicated["replicas"] = replicas
    replicated["template"]["spec"] |= {"parallelism": 1, "completions": 1}
    return made


@pytest.mark.parametrize(
    ("kind", "state"), [("Completed", "ended"), ("Failed", "failed"), ("RestartingJobSet", "running")]
)
def test_conditions_tell_the_state(kind: str, state: str) -> None:
    made = load("jobset")
    made["status"]["conditions"].append({"type": kind, "status": "True"})
    assert read_state(made) == state


def test_jobset_without_status_waits() -> None:
    made = load("jobset")
    del made["status"]
    assert read_state(made) == "waiting"


def test_queued_jobset_is_recreated_because_kueue_resumes_it() -> None:
    made = jobset(suspend=True)
    made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    assert find_objection(made) is None
    assert choose_way(made, ORDER, None) == ("recreate", "Kueue owns its suspension")


def test_same_number_of_nodes_needs_no_new_jobset() -> None:
    assert choose_way(load("jobset"), Restart("mark-1", "llm", nnodes=2), None)[0] == "suspend"
    assert choose_way(load("jobset"), Restart("mark-1", "llm", nnodes=3), None)[0] == "recreate"


def test_jobset_managed_from_elsewhere_is_left_alone() -> None:
    assert find_objection(jobset(managedBy="kueue.x-k8s.io/multikueue")) == (
        "it is managed by kueue.x-k8s.io/multikueue, from another cluster"
    )


def test_nodes_are_counted_only_where_it_is_clear_whose_pods_they_are() -> None:
    assert count_nodes(load("jobset"), None) == 2
    assert count_nodes(with_launcher(), None) is None
    assert count_nodes(with_launcher(), "workers") == 2
    assert count_nodes(with_launcher(), "nobody") is None


def test_job_per_node_changes_its_replicas() -> None:
    made = recreate(one_job_per_node(4), Restart("mark-1", "llm", nnodes=3), None)["spec"]["replicatedJobs"][0]
    assert (made["replicas"], made["template"]["spec"]["parallelism"]) == (3, 1)


def test_every_alternative_of_an_affinity_avoids_the_node() -> None:
    made = load("jobset")
    zone = [{"key": "zone", "operator": "In", "values": [name]} for name in ("a", "b")]
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]} for one in zone]}
    pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    again = recreate(made, Restart("mark-1", "llm", exclude=("gpu-2", "gpu-1")), None)
    affinity = again["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gpu-1", "gpu-2"]}
    assert [term["matchExpressions"] for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]] == [[zone[0], rule], [zone[1], rule]]  # fmt: skip


def test_recreated_jobset_carries_nothing_that_the_server_made() -> None:
    made = recreate(load("jobset"), ORDER, None)
    assert "status" not in made
    assert set(made["metadata"]) == {"name", "namespace", "labels", "annotations"}
    assert made["metadata"]["annotations"] == {"lockstep.dev/mark": "mark-1"}
    assert "suspend" not in made["spec"]


def test_patch_leaves_the_jobset_it_was_made_from_alone() -> None:
    before = load("jobset")
    suspend_patch(before, Restart("mark-1", "llm", checkpoint="/c"))
    recreate(before, Restart("mark-1", "llm", exclude=("gpu-1",), nnodes=1, checkpoint="/c"), None)
    assert before == load("jobset")


def test_annotation_alone_is_no_isolation() -> None:
    """A person has taken taint and cordon away: what they did holds."""
    node = load("node")
    node["metadata"]["annotations"][ISOLATED] = NOTE
    assert read_isolation(node) is None
    assert view_node(node).is_usable


def test_cordon_without_our_taint_is_somebody_elses_though_our_note_was_left() -> None:
    node = load("node")
    node["metadata"]["annotations"][ISOLATED] = NOTE
    node["spec"]["unschedulable"] = True
    assert read_isolation(node) is None
    node["spec"]["taints"].append({"key": ISOLATED, "value": "mark-1", "effect": "NoSchedule"})
    isolated = read_isolation(node)
    assert isolated == Isolated("mark-1", "xid 79", is_cordon_ours=True)
    assert release_patch(node, isolated)["spec"]["unschedulable"] is None


def test_taint_with_an_annotation_nobody_can_read_is_still_ours() -> None:
    node = load("node")
    node["metadata"]["annotations"][ISOLATED] = "{"
    node["spec"]["taints"].append({"key": ISOLATED, "value": "mark-1", "effect": "NoSchedule"})
    isolated = read_isolation(node)
    assert isolated is not None
    assert (isolated.mark, isolated.is_cordon_ours) == ("mark-1", False)
    assert view_node(node).reason == "isolated under mark-1"
    assert not view_node(node).is_usable
