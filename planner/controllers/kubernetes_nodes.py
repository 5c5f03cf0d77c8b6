"""How an isolated node looks in Kubernetes, and the patches that isolate it and give it back. Pure.

One patch sets all at once: the cordon (`spec.unschedulable`), a taint that carries the mark, and an annotation that
remembers why, and whether the cordon is ours. So there is no half isolated node, and a cordon that somebody had set
before us stays when we go.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from planner.controllers.kubernetes_api import Object
from planner.controllers.protocol import Node

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
    said = _read_json(written)
    mark = said.get("mark") or marks[0]
    return Isolated(str(mark), str(said.get("reason", "")), bool(said.get("cordon")))


def isolate_patch(node: Object, mark: str, reason: str, effect: Effect) -> Object:
    """Return the merge patch that isolates a node; lists travel whole, so it carries the version it was made from."""
    is_cordon_ours = not node.get("spec", {}).get("unschedulable", False)
    note = json.dumps({"mark": mark, "reason": reason, "cordon": is_cordon_ours})
    taint = {"key": ISOLATED, "value": mark, "effect": effect}
    return {
        "metadata": _version(node) | {"annotations": {ISOLATED: note}},
        "spec": {"unschedulable": True, "taints": [*_foreign_taints(node), taint]},
    }


def release_patch(node: Object, isolated: Isolated) -> Object:
    """Return the merge patch that takes away what we set, and nothing else."""
    spec: Object = {"taints": _foreign_taints(node)}
    if isolated.is_cordon_ours:
        spec["unschedulable"] = None
    return {"metadata": _version(node) | {"annotations": {ISOLATED: None}}, "spec": spec}


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


def _foreign_taints(node: Object) -> list[Object]:
    return [taint for taint in _taints(node) if taint.get("key") != ISOLATED]


def _version(node: Object) -> Object:
    return {"resourceVersion": node["metadata"]["resourceVersion"]}


def _read_json(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
