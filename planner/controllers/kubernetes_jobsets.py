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
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.errors import ControllerDown
from planner.controllers.kubernetes_api import Answer, Calls, Object
from planner.controllers.protocol import JobView, Report, Restart, find_variables

MARK = "lockstep.dev/mark"
API_VERSION = "jobset.x-k8s.io/v1alpha2"
_OURS = "lockstep.dev/"
_QUEUE = "kueue.x-k8s.io/queue-name"
_MADE_BY_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_HOSTNAME = "kubernetes.io/hostname"

Method = Literal["suspend", "recreate"]
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


def choose_method(jobset: Object, order: Restart, workers: str | None) -> tuple[Method, str]:
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
    wanted = find_variables(order)
    for template in _pod_templates(spec["replicatedJobs"]):
        for container in template["spec"]["containers"]:
            others = [one for one in container.get("env", []) if one["name"] not in wanted]
            container["env"] = others + [{"name": name, "value": value} for name, value in wanted.items()]
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
        any(
            path == variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            for container in pod["spec"]["containers"]
            for variable in container.get("env", [])
        )
        for pod in _pod_templates(jobset["spec"]["replicatedJobs"])
    )


def _pod_templates(replicated_jobs: list[Object]) -> Iterator[Object]:
    for replicated in replicated_jobs:
        yield replicated["template"]["spec"]["template"]


def _active(jobset: Object) -> int:
    return sum(int(one.get("active", 0)) for one in jobset.get("status", {}).get("replicatedJobsStatus", []))


def _has_condition(jobset: Object, kind: str) -> bool:
    conditions: list[dict[str, Any]] = jobset.get("status", {}).get("conditions", [])
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


_CONFLICT = 409
_KEY = "jobset.json"
_REPLACES = "lockstep.dev/replaces"


@dataclass(frozen=True, slots=True)
class KeptManifest:
    """A restart that was begun: what to create, and in whose place."""

    manifest: Object
    replaces: str  # uid of the JobSet that goes
    uid: str  # of the ConfigMap that holds it


class Restarting:
    """One order on one JobSet."""

    def __init__(self, calls: Calls, namespace: str, name: str, order: Restart, workers: str | None) -> None:
        self._calls, self.order, self._workers = calls, order, workers
        self.is_begun = False  # something of the job is stopped or deleted, or about to be
        self._jobsets, self._path = jobset_path(namespace), jobset_path(namespace, name)
        self._keepers = f"/api/v1/namespaces/{namespace}/configmaps"
        # The name of a ConfigMap allows less than a mark does.
        self._keeper = "lockstep-restart-" + hashlib.sha256(order.mark.encode()).hexdigest()[:16]

    def suspend(self, jobset: Object) -> Report | None:
        """Suspend a JobSet, wait until its pods are gone, and resume it; None when it is no longer as it was seen."""
        answer = self._calls.patch(self._path, suspend_patch(jobset, self.order))
        if answer.status == _CONFLICT:
            return None
        if not answer.is_good:
            return self._failed("suspended", answer)
        return self.finish(answer.body)

    def finish(self, jobset: Object) -> Report:
        """Bring to its end what was begun under this mark; `already` when there is nothing left to do."""
        if is_restarted(jobset, self.order.mark):
            what = f"JobSet {self.order.job} was restarted under {self.order.mark} before"
            return Report("already", what, self.order.job)
        self.is_begun = True
        if not self._calls.wait_until(self._has_stopped):
            what = f"the pods of JobSet {self.order.job} have not stopped yet; ask again to resume it"
            return Report("failed", what)
        answer = self._calls.patch(self._path, {"spec": {"suspend": False}})  # whatever else was changed meanwhile
        if not answer.is_good:
            return self._failed("resumed", answer)
        return Report("done", f"JobSet {self.order.job} was suspended and resumed", self.order.job)

    def recreate(self, jobset: Object) -> Report:
        """Delete a JobSet and create it again, changed as ordered."""
        replaces = str(jobset["metadata"]["uid"])
        kept = recreate(jobset, self.order, self._workers)
        annotations = {MARK: self.order.mark, _REPLACES: replaces}
        metadata = {"name": self._keeper, "annotations": annotations}
        keeper = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_KEY: json.dumps(kept)}}
        answer = self._calls.create(self._keepers, keeper)
        if not answer.is_good:
            return self._failed("kept in a ConfigMap, and so not touched", answer)
        return self.replace(KeptManifest(kept, replaces, str(answer.body["metadata"]["uid"])))

    def find_kept(self) -> KeptManifest | None:
        """Return the restart that was begun under this mark and not ended."""
        answer = self._calls.get(f"{self._keepers}/{self._keeper}")
        if not answer.is_good:
            return None
        try:
            metadata = answer.body["metadata"]
            manifest = json.loads(answer.body["data"][_KEY])
            return KeptManifest(manifest, metadata["annotations"][_REPLACES], str(metadata["uid"]))
        except (KeyError, ValueError):
            raise ControllerDown(f"ConfigMap {self._keeper} is damaged: look at it, then delete it") from None

    def replace(self, kept: KeptManifest) -> Report:
        """Go on from wherever an earlier try has come to."""
        self.is_begun = True
        seen = self._calls.get(self._path)
        if seen.is_good and seen.body["metadata"]["uid"] == kept.replaces:
            answer = self._calls.delete(self._path, kept.replaces)
            if not answer.is_good and answer.status != 404:
                return self._failed("deleted", answer)
            if not self._calls.wait_until(lambda: self._calls.get(self._path).status == 404):
                return Report(
                    "failed", f"JobSet {self.order.job} is still being deleted; ask again to create it anew"
                )
        elif seen.is_good:  # it has been created, by us or by somebody else
            self._calls.delete(f"{self._keepers}/{self._keeper}", kept.uid)
            if read_mark(seen.body) == self.order.mark:
                return self.finish(seen.body)
            return Report("refused", f"somebody else has created JobSet {self.order.job} while it was restarted")
        answer = self._calls.create(self._jobsets, kept.manifest)
        if not answer.is_good:
            return self._failed(f"created again (its manifest is in ConfigMap {self._keeper})", answer)
        self._calls.delete(f"{self._keepers}/{self._keeper}", kept.uid)
        return Report("done", f"JobSet {self.order.job} was deleted and created again", self.order.job)

    def _has_stopped(self) -> bool:
        """Return whether a suspended JobSet has no pod left. Resumed sooner, its old pods would just go on."""
        answer = self._calls.get(self._path)
        return answer.is_good and _has_condition(answer.body, "Suspended") and not _active(answer.body)

    def _failed(self, done: str, answer: Answer) -> Report:
        return Report("failed", f"JobSet {self.order.job} was not {done}: {answer.message}")


def jobset_path(namespace: str, name: str = "") -> str:
    """Return where a JobSet is found; without a name, where all are."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/jobsets/{name}".rstrip("/")
