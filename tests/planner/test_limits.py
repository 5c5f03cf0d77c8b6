"""What is too much, too old, too doubtful, or undone by a person is held, with a sentence that says so."""

import pytest

from lockstep.clock import NS_PER_S
from lockstep.execution import Isolated, IsolationState
from lockstep.verdict import Verdict
from planner.context import ClusterFacts, JobFacts
from planner.controllers.protocol import Node
from planner.limits import Constraints, Limits, find_hold
from tests.planner.build import HOSTS, T0, cluster, context, crash, incident, job, seconds, verdict
from tests.planner.test_steps import decision

NOW_NS = seconds(10)


def hold(
    constraints: Constraints | None = None,
    about: Verdict | None = None,
    of: JobFacts | None = None,
    within: ClusterFacts | None = None,
    limits: Limits | None = None,
    evaluated_ns: int = NOW_NS,
) -> str | None:
    found = context(about or crash(last_seen_ns=NOW_NS), of, within)
    of_it = incident(found.verdict).model_copy(update={"updated_ns": evaluated_ns})
    return find_hold(of_it, "reconfigure", found, constraints or Constraints(), limits or Limits(), NOW_NS)


def out(node: str, *, at_s: float = 0.0, state: IsolationState = "isolated") -> Isolated:
    return Isolated(
        node=node,
        component=f"host:{node}",
        decision=f"of {node}",
        job="other",
        reason="",
        state=state,
        since_ns=seconds(at_s),
        changed_ns=seconds(at_s),
    )


def test_nothing_speaks_against_a_sure_and_fresh_verdict() -> None:
    assert hold() is None


def test_verdict_that_later_evaluations_did_not_confirm_is_held() -> None:
    assert hold(about=crash(last_seen_ns=NOW_NS - 90 * NS_PER_S)) == (
        "the verdict is stale: it was last confirmed 90 s before the newest evaluation of the job"
    )


def test_verdict_is_not_stale_because_its_analyzer_is_behind_but_when_it_is_down() -> None:
    behind_ns, down_ns = NOW_NS - 170 * NS_PER_S, NOW_NS - 700 * NS_PER_S
    assert hold(about=crash(last_seen_ns=behind_ns), evaluated_ns=behind_ns) is None
    assert hold(about=crash(last_seen_ns=down_ns), evaluated_ns=down_ns) == (
        "the verdict is stale: the job was last evaluated 700 s ago"
    )


def test_doubtful_verdict_is_held() -> None:
    assert hold(about=crash(last_seen_ns=NOW_NS, confidence=0.8)) == (
        "the verdict is 80% sure, and automatic action needs 90%"
    )


def test_nodes_of_the_last_hour_are_counted_and_those_that_came_back_too() -> None:
    constraints = Constraints(isolated=[out("h8", state="returned"), out("h9")])
    assert hold(constraints) == "2 nodes were isolated in the last hour, and 2 is the limit"
    assert hold(constraints, limits=Limits(nodes_per_hour=3)) is None


def test_node_that_is_isolated_already_does_not_count_against_itself() -> None:
    assert hold(Constraints(isolated=[out("h3"), out("h9")])) is None


def test_nodes_that_are_out_at_once_are_limited() -> None:
    long_ago = [out(f"x{n}", at_s=-90_000, state="repair") for n in range(8)]
    assert hold(Constraints(isolated=long_ago)) == "8 nodes are out of service, and 8 is the limit"


def test_share_of_a_block_is_limited_but_one_node_may_always_go() -> None:
    assert hold(Constraints(isolated=[out("h1", at_s=-90_000)])) == (
        "1 of the 5 hosts of leaf0 are out of service, and 1 may be"
    )
    assert hold(Constraints(isolated=[out("h9", at_s=-90_000)])) is None


def test_job_never_falls_below_its_minimum() -> None:
    assert hold(of=job(min_nodes=8)) == "7 nodes would be left to train, which needs 8"


def test_undo_of_a_person_holds_for_that_part_alone() -> None:
    undone = Constraints(undone=[decision()])
    assert hold(undone) == "a person has undone or rejected decision d1 on host:h3"
    assert hold(undone, about=crash(component="host:h5", last_seen_ns=NOW_NS)) is None


@pytest.mark.parametrize(
    ("other", "since_s", "is_held"), [("gpu:h5/0", 3, True), ("gpu:h5/0", 99, False), ("nic:h3/eth0", 3, False)]
)
def test_verdicts_that_blame_different_nodes_for_the_same_time_disagree(
    other: str, since_s: float, is_held: bool
) -> None:
    another = incident(verdict(component=other, since_ns=seconds(since_s)), name="i2")
    message = hold(Constraints(others=[incident(crash()), another]))
    assert message == (
        f"two verdicts disagree: host:h3 and {other} are blamed for the same time" if is_held else None
    )


def test_node_that_the_controller_does_not_know_is_held() -> None:
    known = [Node(host, is_usable=True) for host in HOSTS if host != "h3"]
    assert hold(Constraints(nodes=known)) == "the controller does not know node h3"


def test_controller_that_does_not_answer_is_said() -> None:
    assert hold(Constraints(controller_trouble="timed out")) == "the controller does not answer: timed out"


def test_doing_nothing_is_never_held() -> None:
    found = context(crash(confidence=0.1))
    assert find_hold(incident(), "none", found, Constraints(), Limits(), T0 + 10**12) is None


def test_cluster_without_a_topology_has_no_blocks() -> None:
    assert hold(Constraints(isolated=[out("h1", at_s=-90_000)]), within=cluster(block_of={})) is None
