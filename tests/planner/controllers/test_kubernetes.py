"""The Kubernetes controller against a fake API server over real HTTP, with the official client."""

import copy
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.kubernetes import ISOLATED, KubernetesController, KubernetesOptions
from planner.controllers.kubernetes_api import connect, quiet_client
from planner.controllers.protocol import Restart
from tests.planner.controllers.contract import Rig, check_contract
from tests.planner.controllers.fake_kubernetes import NODES, FakeKubernetes, Object, expect, fill, make, serve

client = pytest.importorskip("kubernetes.client", reason="needs the extra lockstep[kubernetes]")

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: planner}}]
clusters: [{name: here, cluster: {server: "URL"}}]
users: [{name: planner, user: {token: secret-token}}]
"""


def specs(fake: FakeKubernetes) -> dict[str, Object]:
    """Return what we may change of nodes: all but the version."""
    seen = copy.deepcopy(fake.objects[NODES])
    for node in seen.values():
        del node["metadata"]["resourceVersion"]
    return seen


def test_it_keeps_the_contract_of_controllers(fake: FakeKubernetes, api: Any) -> None:
    def cordon(name: str) -> None:
        fake.objects[NODES][name]["spec"]["unschedulable"] = True

    rig = Rig(
        make=lambda dry: make(api, dry_run=dry),
        look=lambda: specs(fake),
        node="gpu-1",
        other="gpu-2",
        reset=lambda: fill(fake),
        occupy=cordon,
    )
    check_contract(rig)


def test_isolated_node_is_cordoned_and_tainted_beside_foreign_taints(fake: FakeKubernetes, api: Any) -> None:
    make(api).isolate("gpu-1", "mark-1", "xid 79")
    spec = fake.objects[NODES]["gpu-1"]["spec"]
    assert spec["unschedulable"] is True
    assert [taint["key"] for taint in spec["taints"]] == ["nvidia.com/gpu", ISOLATED]
    assert spec["taints"][1] == {"key": ISOLATED, "value": "mark-1", "effect": "NoSchedule"}
    assert spec["podCIDR"] == "10.244.1.0/24"
    make(api, effect="NoExecute").isolate("gpu-2", "mark-1", "xid 79")
    assert fake.objects[NODES]["gpu-2"]["spec"]["taints"][-1]["effect"] == "NoExecute"


def test_node_that_is_not_ready_is_not_usable_and_pages_are_read(fake: FakeKubernetes, api: Any) -> None:
    ready = fake.objects[NODES]["gpu-1"]["status"]["conditions"][1]
    ready |= {"status": "Unknown", "message": "Kubelet stopped posting node status."}
    node = make(api).nodes()[0]
    assert (node.is_usable, node.reason) == (False, "not ready: Kubelet stopped posting node status.")
    fake.page_size = 2
    assert [node.name for node in make(api).nodes()] == ["gpu-1", "gpu-2", "gpu-3"]
    assert fake.requests[1:] == [f"GET {NODES}"] * 2


def test_conflict_is_tried_once_more(fake: FakeKubernetes, api: Any) -> None:
    fake.somebody_writes_before_patch = 1
    expect(make(api).isolate("gpu-1", "mark-1", "xid 79"), "done")
    fake.somebody_writes_before_patch = 2
    expect(make(api).isolate("gpu-2", "mark-1", "xid 79"), "failed", "has been modified", "409")


def test_missing_right_and_what_nobody_knows_are_refused(fake: FakeKubernetes, api: Any) -> None:
    for method in ("GET", "PATCH"):
        fake.faults[method] = [403]
        expect(make(api).isolate("gpu-1", "mark-1", "xid 79"), "refused", "told to fail", "403")
    expect(make(api).isolate("gpu-9", "mark-1", "xid 79"), "refused", "there is no node gpu-9")
    expect(make(api).restart(Restart("mark-1", "train/gone")), "refused", "there is no JobSet train/gone")
    assert make(api).job("train/gone") is None


def test_server_that_is_in_trouble_trickles_hangs_or_is_gone_is_down(fake: FakeKubernetes, api: Any) -> None:
    clock = ManualClock()
    fake.trickles, fake.byte_sent = True, lambda: clock.advance(0.1)  # each byte comes in time, all of them do not
    with pytest.raises(ControllerDown, match="did not end its answer within 60 s"):
        KubernetesController(api, KubernetesOptions(), clock).nodes()
    fake.trickles = False
    for status in (429, 500, 503):
        fake.faults["GET"] = [status]
        with pytest.raises(ControllerDown, match=f"cannot answer now: told to fail .HTTP {status}"):
            make(api).nodes()
    nobody = quiet_client(client.Configuration(host="http://127.0.0.1:9"))
    with pytest.raises(ControllerDown, match="does not answer"):
        make(nobody).nodes()
    fake.hang.set()
    with pytest.raises(ControllerDown, match="does not answer"):
        make(api, timeout_s=0.05).isolate("gpu-1", "mark-1", "xid 79")


def test_name_or_mark_that_no_object_can_have_is_bad_input(fake: FakeKubernetes, api: Any) -> None:
    for name in ("", "a/b/../c", "UPPER", "x" * 300, "gpu-1?watch=1"):
        with pytest.raises(BadInput, match="cannot be the name"):
            make(api).isolate(name, "mark-1", "xid 79")
    assert fake.requests == []
    with pytest.raises(BadInput, match="value of a taint"):
        make(api).isolate("gpu-1", "a mark with spaces", "xid 79")


def test_token_of_the_kubeconfig_is_sent(fake: FakeKubernetes, tmp_path: Path) -> None:
    config = tmp_path / "config"
    with serve(fake) as url:
        config.write_text(KUBECONFIG.replace("URL", url))
        make(connect(kubeconfig=str(config))).nodes()
    assert fake.tokens == {"Bearer secret-token"}
