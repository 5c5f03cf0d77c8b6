"""Kubernetes as a job controller: nodes are cordoned and tainted, jobs are JobSets.

A JobSet's affinity cannot be changed while it lives, so a node is kept from a restarted job by its cordon and taint:
`restart` refuses while an excluded node still takes work. A JobSet that is recreated gets the affinity besides.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockstep.clock import Clock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.kubernetes_api import Answer, Calls, Object
from planner.controllers.kubernetes_jobsets import (
    Restarting,
    choose_method,
    count_nodes,
    find_objection,
    is_restarted,
    jobset_path,
    read_mark,
    view_jobset,
)
from planner.controllers.protocol import (
    NOT_IN_PLACE,
    JobView,
    Node,
    Outcome,
    Report,
    Restart,
    check_order,
    report_half_done,
)

ISOLATED = "lockstep.dev/isolated"  # the key of the taint and of the annotation
Effect = Literal["NoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class Isolated:
    """What our annotation on a node says."""

    mark: str
    reason: str
    is_cordon_ours: bool


def view_node(node: Object) -> Node:
    """Return a node as a controller sees it. Foreign taints do not count: jobs on GPU nodes tolerate them."""
    isolated = read_isolation(node)
    complaint = _complaint(node, isolated)
    return Node(node["metadata"]["name"], complaint == "", isolated.mark if isolated else None, complaint)


def read_isolation(node: Object) -> Isolated | None:
    """Return how we isolated this node; None when we did not, or somebody has taken our taint away since.

    Without the taint a cordon may be anybody's, also where our annotation was left behind.
    """
    written = node["metadata"].get("annotations", {}).get(ISOLATED)
    marks = [str(taint.get("value")) for taint in _taints(node) if taint.get("key") == ISOLATED]
    if written is None or not marks:
        return None
    try:
        message = json.loads(written)
    except ValueError:
        message = None
    message = message if isinstance(message, dict) else {}
    mark = message.get("mark") or marks[0]
    return Isolated(str(mark), str(message.get("reason", "")), bool(message.get("cordon")))


def _complaint(node: Object, isolated: Isolated | None) -> str:
    """Return why no new work starts on a node; empty when it may."""
    if isolated:
        return isolated.reason or f"isolated under {isolated.mark}"
    if node.get("spec", {}).get("unschedulable"):
        return "cordoned, but not by Lockstep"
    ready = [one for one in node.get("status", {}).get("conditions", []) if one.get("type") == "Ready"]
    if not ready or ready[0].get("status") != "True":
        return "not ready: " + (ready[0].get("message", "no message") if ready else "its kubelet has not reported")
    return ""


def _taints(node: Object) -> list[Object]:
    return list(node.get("spec", {}).get("taints") or [])


def _patch(node: Object, note: str | None, spec: Object, taints: Sequence[Object] = ()) -> Object:
    """Return a merge patch; lists travel whole, so it carries foreign taints and the version it was made from."""
    foreign = [taint for taint in _taints(node) if taint.get("key") != ISOLATED]
    version = node["metadata"]["resourceVersion"]
    metadata = {"resourceVersion": version, "annotations": {ISOLATED: note}}
    return {"metadata": metadata, "spec": {"taints": [*foreign, *taints], **spec}}


_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # a taint's value is one
_NOT_FOUND, _CONFLICT = 404, 409
_MAY_PASS = (401, _CONFLICT)  # a token that is being renewed, and somebody else's change
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """How to reach the cluster and how firmly to act."""

    kubeconfig: str | None = None  # None, and no context: as the pod that the planner runs in
    context: str | None = None
    namespace: str = "default"  # of jobs whose name carries none
    effect: Effect = "NoSchedule"  # NoExecute also evicts what runs there
    workers: str | None = None  # the replicated Job whose pods stand for nodes; None: the only one
    timeout_s: float = 60.0  # a JobSet's pods need their grace period (30 s unless told) to stop
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A patch, and what is so once it is applied."""

    patch: Object
    what: str


class KubernetesController:
    """Acts through the API server; `client` is a kubernetes.client.ApiClient."""

    name = "kubernetes"
    restarts_whole_job = True
    acts = NOT_IN_PLACE

    def __init__(self, client: Any, options: KubernetesOptions | None = None, clock: Clock | None = None) -> None:
        self._client, self._options, self._clock = client, options or KubernetesOptions(), clock

    def nodes(self) -> Sequence[Node]:
        return [view_node(node) for node in self._calls().list("/api/v1/nodes")]

    def job(self, job: str) -> JobView | None:
        """Return a JobSet and where its pods run; `job` is a name, or namespace/name."""
        calls, (namespace, name) = self._calls(), self._split(job)
        answer = calls.get(jobset_path(namespace, name))
        if answer.status == _NOT_FOUND:
            return None
        if not answer.is_good:
            raise ControllerDown(f"the Kubernetes API does not describe JobSet {job}: {answer.message}")
        label = {"labelSelector": f"jobset.sigs.k8s.io/jobset-name={name}"}
        return view_jobset(answer.body, calls.list(f"/api/v1/namespaces/{namespace}/pods", label), job)

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        _check_mark(mark)
        return self._change(node, lambda seen: _isolation(seen, mark, reason, self._options.effect))

    def release(self, node: str, mark: str) -> Report:
        """Take our taint off a node, and the cordon if it is ours."""
        _check_mark(mark)
        return self._change(node, lambda seen: _release(seen, mark))

    def restart(self, order: Restart) -> Report:
        """Stop a JobSet and start it again, without its excluded nodes, from its checkpoint."""
        _check_mark(order.mark)
        namespace, name = self._split(order.job)
        check_order(replace(order, job=name))
        calls, path = self._calls(), jobset_path(namespace, name)
        act = Restarting(calls, namespace, name, order, self._options.workers)

        def restart() -> Report:
            for _ in range(2):
                if (report := self._restart_once(calls, path, act)) is not None:
                    return report
            return Report("failed", f"JobSet {order.job} is changed by somebody else all the time; ask again")

        return report_half_done(restart, lambda: act.is_begun)

    def _restart_once(self, calls: Calls, path: str, act: Restarting) -> Report | None:
        """Return what became of it; None when the JobSet was changed while we looked at it."""
        order, begun, seen = act.order, act.find_kept(), calls.get(path)
        if begun is None and not seen.is_good:
            return _refusal(f"JobSet {order.job}", seen)
        is_ours = begun is not None or read_mark(seen.body) == order.mark
        objection = None if is_ours else self._find_objection(calls, seen.body, order)
        if objection:
            return Report("refused", f"JobSet {order.job} is not restarted: {objection}")
        if self._options.dry_run and not (begun is None and is_restarted(seen.body, order.mark)):
            if is_ours:
                return Report(
                    "would", f"the restart of JobSet {order.job} under {order.mark} was begun: it would be ended"
                )
            method, why = choose_method(seen.body, order, self._options.workers)
            return Report("would", f"JobSet {order.job} would be restarted ({method}): {why}", order.job)
        if begun is not None:
            return act.replace(begun)
        if is_ours:
            return act.finish(seen.body)
        method, _ = choose_method(seen.body, order, self._options.workers)
        return act.suspend(seen.body) if method == "suspend" else act.recreate(seen.body)

    def reattempt(self, job: str, mark: str) -> Report:
        """Refuse: the scheduler places new pods where it likes."""
        return Report("refused", f"Kubernetes cannot restart {job} on the very nodes it has: restart it instead")

    def _find_objection(self, calls: Calls, jobset: Object, order: Restart) -> str | None:
        if order.nnodes is not None and count_nodes(jobset, self._options.workers) is None:
            return "it has several replicated Jobs, and which of them are the nodes is not configured (workers)"
        for node in order.exclude:
            answer = calls.get(f"/api/v1/nodes/{_check_name(node)}")
            if answer.is_good and view_node(answer.body).is_usable:
                return f"node {node} is excluded but still takes new work: isolate it first"
        return find_objection(jobset)

    def _change(self, node: str, decide: Callable[[Object], Report | Change]) -> Report:
        """Read a node, decide, patch it; once more when somebody changed it between."""
        calls, path = self._calls(), f"/api/v1/nodes/{_check_name(node)}"
        for _ in range(2):
            seen = calls.get(path)
            if not seen.is_good:
                return _refusal(f"node {node}", seen)
            change = decide(seen.body)
            if isinstance(change, Report):
                return change
            if self._options.dry_run:
                return Report("would", f"it would come to this: {change.what}")
            answer = calls.patch(path, change.patch)
            if answer.status != _CONFLICT:
                break
        return Report("done", change.what) if answer.is_good else _refusal(f"node {node}", answer)

    def _calls(self) -> Calls:
        return Calls(self._client, self._options.timeout_s, self._clock)

    def _split(self, job: str) -> tuple[str, str]:
        namespace, _, name = job.rpartition("/")
        return _check_name(namespace or self._options.namespace), _check_name(name)


def _isolation(seen: Object, mark: str, reason: str, effect: Effect) -> Report | Change:
    node, before = seen["metadata"]["name"], read_isolation(seen)
    if before and before.mark == mark:
        return Report("already", f"node {node} is tainted and cordoned under {mark}")
    if before:
        return Report("refused", f"node {node} is isolated under {before.mark}: {before.reason}")
    is_cordon_ours = not seen.get("spec", {}).get("unschedulable", False)
    note = json.dumps({"mark": mark, "reason": reason, "cordon": is_cordon_ours})
    taint = {"key": ISOLATED, "value": mark, "effect": effect}
    patch = _patch(seen, note, {"unschedulable": True}, [taint])
    return Change(patch, f"node {node} is cordoned and tainted {effect}: {reason}")


def _release(seen: Object, mark: str) -> Report | Change:
    before, now = read_isolation(seen), view_node(seen)
    if before is None and now.is_usable:
        return Report("already", f"node {now.name} is in service")
    if before is None:
        return Report("refused", f"node {now.name} was not isolated by us: {now.reason}")
    if before.mark != mark:
        return Report("refused", f"node {now.name} is isolated under {before.mark}, not under {mark}")
    patch = _patch(seen, None, {"unschedulable": None} if before.is_cordon_ours else {})
    stays = "has lost our taint; it was cordoned before us and stays so"
    return Change(patch, f"node {now.name} {'is in service again' if before.is_cordon_ours else stays}")


def _refusal(what: str, answer: Answer) -> Report:
    """Return what a status that is not good means: a conflict may pass by itself, a refusal does not."""
    if answer.status == _NOT_FOUND:
        return Report("refused", f"there is no {what}")
    outcome: Outcome = "failed" if answer.status in _MAY_PASS else "refused"
    return Report(outcome, f"the Kubernetes API did not let us act on {what}: {answer.message}")


def _check_mark(mark: str) -> None:
    if not _LABEL_VALUE.fullmatch(mark):
        raise BadInput(f"a mark must do as the value of a taint (63 of A-Z, a-z, 0-9, '-', '_', '.'), not {mark!r}")


def _check_name(name: str) -> str:
    if not _OBJECT_NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be the name of anything in Kubernetes")
    return name
