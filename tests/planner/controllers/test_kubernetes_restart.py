"""Restarts of JobSets against a fake API server: each way, and a planner that dies at any step of them."""

import contextlib
from typing import Any

import pytest

from lockstep.errors import BadInput, ControllerDown
from planner.controllers.protocol import Restart
from tests.planner.controllers.fake_kubernetes import JOBSETS, KEEPERS, FakeKubernetes, Object, expect, make

pytest.importorskip("kubernetes.client", reason="needs the extra lockstep[kubernetes]")

ORDER = Restart("mark-1", "train/llm", checkpoint="/c/step-400")


@pytest.mark.parametrize(
    "order", [Restart("m", "train/llm", nnodes=0), Restart("m", "llm", environment={"A B": "1"})]
)
def test_order_that_makes_no_sense_is_bad_input(fake: FakeKubernetes, api: Any, order: Restart) -> None:
    with pytest.raises(BadInput, match=r"cannot run on 0 nodes|is no name of a variable"):
        make(api).restart(order)
    assert fake.requests == []


def test_job_is_seen_with_its_nodes_and_restarts(api: Any) -> None:
    view = make(api).job("train/llm")
    assert view is not None
    assert (view.id, view.state, view.nodes, view.restarts) == ("train/llm", "running", ("gpu-1", "gpu-2"), 1)
    assert make(api, namespace="train").job("llm") is not None


def test_restart_suspends_and_resumes_with_the_checkpoint_in_annotations(fake: FakeKubernetes, api: Any) -> None:
    fake.looks_until_stopped = 3
    report = make(api).restart(ORDER)
    expect(report, "done", "suspended and resumed")
    assert report.job == "train/llm"
    jobset = fake.objects[JOBSETS]["llm"]
    assert jobset["spec"]["suspend"] is False
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"lockstep.dev/LOCKSTEP_RESUME_FROM": "/c/step-400"}
    expect(make(api).restart(ORDER), "already")
    assert [one for one in fake.requests if one.startswith("PATCH")] == [f"PATCH {JOBSETS}/llm"] * 2


def test_checkpoint_of_an_earlier_restart_is_emptied(fake: FakeKubernetes, api: Any) -> None:
    make(api).restart(ORDER)
    expect(make(api).restart(Restart("mark-2", "train/llm")), "done")
    template = fake.objects[JOBSETS]["llm"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"lockstep.dev/LOCKSTEP_RESUME_FROM": ""}


def test_restart_whose_pods_do_not_stop_in_time_is_gone_on_with(fake: FakeKubernetes, api: Any) -> None:
    fake.looks_until_stopped = 1_000
    expect(make(api, timeout_s=3).restart(ORDER), "failed", "have not stopped yet")
    assert fake.objects[JOBSETS]["llm"]["spec"]["suspend"] is True
    fake.looks["llm"] = 0
    expect(make(api).restart(ORDER), "done")
    assert fake.objects[JOBSETS]["llm"]["spec"]["suspend"] is False


def test_restart_tries_once_more_after_a_conflict(fake: FakeKubernetes, api: Any) -> None:
    fake.somebody_writes_before_patch = 1
    expect(make(api).restart(ORDER), "done")
    fake.somebody_writes_before_patch = 2
    expect(make(api).restart(Restart("mark-2", "train/llm")), "failed", "all the time")


def test_failed_jobset_is_created_again(fake: FakeKubernetes, api: Any) -> None:
    fake.objects[JOBSETS]["llm"]["status"]["conditions"].append({"type": "Failed", "status": "True"})
    before = fake.objects[JOBSETS]["llm"]["metadata"]["uid"]
    expect(make(api).restart(ORDER), "done", "deleted and created again")
    made = fake.objects[JOBSETS]["llm"]
    assert made["metadata"]["uid"] != before
    assert made["metadata"]["labels"] == {"team": "nlp"}
    env = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "LOCKSTEP_RESUME_FROM", "value": "/c/step-400"},
    ]
    assert fake.objects[KEEPERS] == {}
    expect(make(api).restart(ORDER), "already")


def test_other_number_of_nodes_is_created_again_away_from_excluded_ones(fake: FakeKubernetes, api: Any) -> None:
    make(api).isolate("gpu-1", "mark-1", "xid 79")
    expect(make(api).restart(Restart("mark-1", "train/llm", exclude=("gpu-1",), nnodes=1)), "done", "created again")
    job = fake.objects[JOBSETS]["llm"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"]) == (1, 1)
    terms = job["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gpu-1"]}
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}


@pytest.mark.parametrize("dies_at", range(1, 10))
def test_planner_that_dies_while_recreating_loses_nothing(fake: FakeKubernetes, api: Any, dies_at: int) -> None:
    """Whichever request is its last, the next planner ends what was begun, and creates one JobSet."""
    fake.objects[JOBSETS]["llm"]["status"]["conditions"].append({"type": "Failed", "status": "True"})
    die_after(fake, dies_at)
    with contextlib.suppress(ControllerDown):
        make(api).restart(ORDER)
    revive(fake)
    assert make(api).restart(ORDER).is_good
    assert list(fake.objects[JOBSETS]) == ["llm"]
    assert fake.objects[JOBSETS]["llm"]["metadata"]["annotations"]["lockstep.dev/mark"] == "mark-1"
    assert fake.objects[KEEPERS] == {}
    created = [one for one in fake.requests if one == f"POST {JOBSETS}"]
    assert len(created) == 1


def die_after(fake: FakeKubernetes, requests: int) -> None:
    """Let the fake answer so many requests and fail all that follow, unseen by it."""
    answer, left = FakeKubernetes.answer, iter(range(requests))

    def once(method: str, path: str, body: Object) -> tuple[int, Object]:
        if next(left, None) is None:
            return 503, {"message": "dead"}
        return answer(fake, method, path, body)

    fake.answer = once  # type: ignore[method-assign]  # the fake is ours to break


def revive(fake: FakeKubernetes) -> None:
    fake.__dict__.pop("answer", None)


def test_excluded_node_that_takes_work_is_refused(fake: FakeKubernetes, api: Any) -> None:
    order = Restart("mark-1", "train/llm", exclude=("gpu-2",))
    expect(make(api).restart(order), "refused", "node gpu-2 is excluded but still takes new work")
    assert all(one.startswith("GET") for one in fake.requests)


def test_jobset_of_somebody_else_is_refused(fake: FakeKubernetes, api: Any) -> None:
    metadata = fake.objects[JOBSETS]["llm"]["metadata"]
    metadata["ownerReferences"] = [{"kind": "TrainJob", "name": "llm", "controller": True}]
    expect(make(api).restart(ORDER), "refused", "belongs to TrainJob llm")


def test_jobset_that_has_ended_is_not_begun_anew(fake: FakeKubernetes, api: Any) -> None:
    fake.objects[JOBSETS]["llm"]["status"]["conditions"].append({"type": "Completed", "status": "True"})
    expect(make(api).restart(ORDER), "refused", "it has ended by itself")


def test_jobset_that_somebody_suspended_is_refused(fake: FakeKubernetes, api: Any) -> None:
    fake.objects[JOBSETS]["llm"]["spec"]["suspend"] = True
    expect(make(api).restart(ORDER), "refused", "somebody has suspended it")


def test_dry_restart_says_the_way_and_changes_nothing(fake: FakeKubernetes, api: Any) -> None:
    expect(make(api, dry_run=True).restart(ORDER), "would", "suspend", "is enough")
    order = Restart("mark-1", "train/llm", environment={"TP": "2"})
    expect(make(api, dry_run=True).restart(order), "would", "recreate", "do not read TP from their annotations")
    assert all(one.startswith("GET") for one in fake.requests)


def test_jobset_that_vanishes_while_it_stops_is_a_failure(fake: FakeKubernetes, api: Any) -> None:
    fake.looks_until_stopped, answer = 1_000, fake.answer

    def vanish(method: str, path: str, body: Object) -> tuple[int, Object]:
        said = answer(method, path, body)
        if method == "PATCH":
            fake.objects[JOBSETS].clear()
        return said

    fake.answer = vanish  # type: ignore[method-assign]  # the fake is ours to break
    expect(make(api, timeout_s=3).restart(ORDER), "failed", "have not stopped yet")


def test_damaged_note_is_left_for_a_person(fake: FakeKubernetes, api: Any) -> None:
    fake.objects[JOBSETS]["llm"]["status"]["conditions"].append({"type": "Failed", "status": "True"})
    die_after(fake, 3)
    with contextlib.suppress(ControllerDown):
        make(api).restart(ORDER)
    revive(fake)
    (kept,) = fake.objects[KEEPERS].values()
    kept["data"] = {}
    with pytest.raises(ControllerDown, match="is damaged: look at it, then delete it"):
        make(api).restart(ORDER)


def test_missing_right_to_look_is_no_missing_job(fake: FakeKubernetes, api: Any) -> None:
    fake.faults["GET"] = [403]
    with pytest.raises(ControllerDown, match="does not tell about JobSet train/llm: told to fail"):
        make(api).job("train/llm")


def test_reattempt_is_refused(api: Any) -> None:
    expect(make(api).reattempt("train/llm", "mark-1"), "refused", "restart it instead")
