"""What a JobSet says about itself, and what it must become to start again. Pure.

JobSet (jobset.x-k8s.io/v1alpha2) has no verb for a restart, and its webhook keeps `replicatedJobs` immutable. Two
ways work on any installation, and neither spends the job's `maxRestarts`:

- suspend: `spec.suspend` to true and back. The Jobs stay, their pods are deleted and made anew. Meanwhile the pod
  template's annotations may change, so a checkpoint reaches the pods if the manifest reads it from there
  (`valueFrom: {fieldRef: {fieldPath: metadata.annotations['lockstep.dev/LOCKSTEP_RESUME_FROM']}}`).
- recreate: delete the JobSet and create it again under its name, with the variables in its containers. For all that
  suspending cannot do: a JobSet that has ended or failed is final, another number of nodes, a manifest that reads no
  annotation, a queue (Kueue owns `suspend` and would resume at once).

Deleting the child Jobs restarts a JobSet as well, but can hand nothing to the new pods.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from planner.controllers.kubernetes_api import Object
from planner.controllers.orders import find_variables
from planner.controllers.protocol import JobView, Restart

MARK = "lockstep.dev/mark"
API_VERSION = "jobset.x-k8s.io/v1alpha2"
_OURS = "lockstep.dev/"
_QUEUE = "kueue.x-k8s.io/queue-name"
_MADE_BY_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_HOSTNAME = "kubernetes.io/hostname"

Way = Literal["suspend", "recreate"]
State = Literal["waiting", "running", "ended", "failed"]


def view_jobset(jobset: Object, pods: list[Object], name: str) -> JobView:
    """Return a JobSet and its pods as a controller sees a job."""
    nodes = {pod.get("spec", {}).get("nodeName") for pod in pods} - {None}
    restarts = int(jobset.get("status", {}).get("restarts", 0))
    return JobView(name, read_state(jobset), tuple(sorted(nodes)), restarts, read_mark(jobset))


def read_state(jobset: Object) -> State:
    """Return where a JobSet stands."""
    if _has_condition(jobset, "Completed"):
        return "ended"
    if _has_condition(jobset, "Failed"):
        return "failed"
    return "waiting" if jobset["spec"].get("suspend") or not _active(jobset) else "running"


def read_mark(jobset: Object) -> str | None:
    """Return the mark of the decision that started a JobSet last."""
    mark = jobset["metadata"].get("annotations", {}).get(MARK)
    return None if mark is None else str(mark)


def is_restarted(jobset: Object, mark: str) -> bool:
    """Return whether the restart under a mark is over. Of a queued JobSet Kueue does the rest."""
    return read_mark(jobset) == mark and (is_queued(jobset) or not jobset["spec"].get("suspend"))


def has_stopped(jobset: Object) -> bool:
    """Return whether a suspended JobSet has no pod left. Resumed sooner, its old pods would just go on."""
    return _has_condition(jobset, "Suspended") and not _active(jobset)


def is_queued(jobset: Object) -> bool:
    """Return whether Kueue decides when a JobSet runs."""
    return _QUEUE in jobset["metadata"].get("labels", {})


def find_objection(jobset: Object) -> str | None:
    """Return why nobody but its owner may restart a JobSet; None when we may."""
    owner = next((one for one in jobset["metadata"].get("ownerReferences", []) if one.get("controller")), None)
    if owner:
        return f"it belongs to {owner['kind']} {owner['name']}, which would undo any change: restart that"
    manager = jobset["spec"].get("managedBy", _CONTROLLER)
    if manager != _CONTROLLER:
        return f"it is managed by {manager}, from another cluster"
    if read_state(jobset) == "ended":
        return "it has ended by itself"
    if jobset["spec"].get("suspend") and not is_queued(jobset):
        return "somebody has suspended it"
    return None


def choose_way(jobset: Object, order: Restart, workers: str | None) -> tuple[Way, str]:
    """Return how to restart a JobSet, and why so."""
    if read_state(jobset) in ("ended", "failed"):
        return "recreate", f"a JobSet that has {read_state(jobset)} is final"
    if order.nnodes is not None and order.nnodes != count_nodes(jobset, workers):
        return "recreate", "the number of its pods cannot be changed"
    if is_queued(jobset):
        return "recreate", "Kueue owns its suspension"
    deaf = [name for name in find_variables(order) if not _reads(jobset, name)]
    if deaf:
        return "recreate", f"its pods do not read {', '.join(deaf)} from their annotations"
    return "suspend", "suspending and resuming it is enough"


def count_nodes(jobset: Object, workers: str | None) -> int | None:
    """Return on how many nodes a JobSet runs, a pod each; None when it cannot be told which of its Jobs counts."""
    replicated = find_workers(jobset, workers)
    if replicated is None:
        return None
    return int(replicated.get("replicas", 1)) * int(replicated["template"]["spec"].get("parallelism", 1))


def find_workers(jobset: Object, workers: str | None) -> Object | None:
    """Return the replicated Job whose pods stand for nodes: the one of that name, or the only one."""
    all_of_it: list[Object] = jobset["spec"]["replicatedJobs"]
    mine = [one for one in all_of_it if one["name"] == workers] if workers else all_of_it
    return mine[0] if len(mine) == 1 else None


def suspend_patch(jobset: Object, order: Restart) -> Object:
    """Return the merge patch that stops a JobSet's pods and tells the next ones what they shall know."""
    replicated = copy.deepcopy(jobset["spec"]["replicatedJobs"])
    for template in _pod_templates(replicated):
        annotations = template.setdefault("metadata", {}).setdefault("annotations", {})
        # Emptied, not removed: the controller merges annotations into its Jobs, so what is missing would stay.
        annotations |= {key: "" for key in annotations if key.startswith(_OURS)}
        annotations |= {_OURS + name: value for name, value in find_variables(order).items()}
    version = {"resourceVersion": jobset["metadata"]["resourceVersion"]}
    return {
        "metadata": version | {"annotations": {MARK: order.mark}},
        "spec": {"suspend": True, "replicatedJobs": replicated},
    }


def resume_patch() -> Object:
    """Return the merge patch that lets a suspended JobSet start again, whatever else was changed meanwhile."""
    return {"spec": {"suspend": False}}


def recreate(jobset: Object, order: Restart, workers: str | None) -> Object:
    """Return the manifest of the JobSet that takes the place of another."""
    kept = jobset["metadata"]
    annotations = {key: value for key, value in kept.get("annotations", {}).items() if key != _MADE_BY_KUBECTL}
    metadata = {
        "name": kept["name"],
        "namespace": kept["namespace"],
        "labels": kept.get("labels", {}),
        "annotations": annotations | {MARK: order.mark},
    }
    spec = {key: copy.deepcopy(value) for key, value in jobset["spec"].items() if key != "suspend"}
    manifest = {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata, "spec": spec}
    for template in _pod_templates(spec["replicatedJobs"]):
        _set_environment(template["spec"], find_variables(order))
        _avoid(template["spec"], order.exclude)
    if order.nnodes is not None:
        _resize(manifest, order.nnodes, workers)
    return manifest


def _resize(jobset: Object, nnodes: int, workers: str | None) -> None:
    replicated = find_workers(jobset, workers)
    assert replicated is not None, "asked for only after count_nodes has found it"
    job = replicated["template"]["spec"]
    if int(job.get("parallelism", 1)) == 1 and int(replicated.get("replicas", 1)) > 1:
        replicated["replicas"] = nnodes  # a Job per node
    else:
        replicated["replicas"] = 1
        job["parallelism"] = job["completions"] = nnodes  # an index per node


def _set_environment(pod: Object, wanted: Mapping[str, str]) -> None:
    for container in pod["containers"]:
        others = [one for one in container.get("env", []) if one["name"] not in wanted]
        container["env"] = others + [{"name": name, "value": value} for name, value in wanted.items()]


def _avoid(pod: Object, nodes: tuple[str, ...]) -> None:
    """Keep a pod away from nodes; terms are alternatives of each other, so each of them must say it."""
    if not nodes:
        return
    rule = {"key": _HOSTNAME, "operator": "NotIn", "values": sorted(nodes)}
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term["matchExpressions"] = [*term.get("matchExpressions", []), rule]


def _reads(jobset: Object, name: str) -> bool:
    """Return whether in each replicated Job some container takes a variable from the annotation of that name."""
    path = f"metadata.annotations['{_OURS}{name}']"
    return all(
        any(path == _field_path(one) for container in pod["spec"]["containers"] for one in container.get("env", []))
        for pod in _pod_templates(jobset["spec"]["replicatedJobs"])
    )


def _field_path(variable: Object) -> str | None:
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return None if path is None else str(path)


def _pod_templates(replicated_jobs: list[Object]) -> Iterator[Object]:
    for replicated in replicated_jobs:
        yield replicated["template"]["spec"]["template"]


def _active(jobset: Object) -> int:
    return sum(int(one.get("active", 0)) for one in jobset.get("status", {}).get("replicatedJobsStatus", []))


def _has_condition(jobset: Object, kind: str) -> bool:
    conditions: list[dict[str, Any]] = jobset.get("status", {}).get("conditions", [])
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)
