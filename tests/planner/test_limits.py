"""What is too much, too old, too doubtful, or undone by a person is held, with a sentence that says so."""

from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.execution import IsolationState
from lockstep.sections import PlannerSettings
from lockstep.verdict import Verdict
from planner.context import ClusterFacts, JobFacts
from planner.controllers.protocol import Node
from planner.limits import Constraints, find_hold
from tests.planner.build import (
    HOSTS,
    T0,
    cluster,
    context,
    crash,
    decision,
    incident,
    isolated,
    job,
    seconds,
    verdict,
)

NOW_NS = seconds(10)


def hold(
    constraints: Constraints | None = None,
    about: Verdict | None = None,
    of: JobFacts | None = None,
    within: ClusterFacts | None = None,
    settings: PlannerSettings | None = None,
    evaluated_ns: int = NOW_NS,
) -> str | None:
    found = context(about or crash(last_seen_ns=NOW_NS), of, within)
    of_it = incident(found.verdict).model_copy(update={"updated_ns": evaluated_ns})
    return find_hold(of_it, "reconfigure", found, constraints or Constraints(), settings or PlannerSettings(), NOW_NS)


def out(*nodes: str, at_s: float = 0.0, state: IsolationState = "isolated") -> Constraints:
    return Constraints(
        isolated=[isolated(node, at_s=at_s, decision=f"of {node}", job="other", state=state) for node in nodes]
    )


LONG_AGO_S = -90_000
KNOWN = [Node(host, is_usable=True) for host in HOSTS if host != "h3"]
UNDONE = Constraints(undone=[decision()])


def seen(ago_s: float = 0.0, **changes: Any) -> Verdict:  # Any: fields of a verdict
    return crash(last_seen_ns=NOW_NS - int(ago_s * NS_PER_S), **changes)


def behind(ago_s: float) -> dict[str, Any]:  # Any: arguments of `hold`
    return {"about": seen(ago_s), "evaluated_ns": NOW_NS - int(ago_s * NS_PER_S)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        (
            {"about": seen(90)},
            "the verdict is stale: it was last confirmed 90 s before the newest evaluation of the job",
        ),
        (behind(170), None),
        (behind(700), "the verdict is stale: the job was last evaluated 700 s ago"),
        ({"about": seen(confidence=0.8)}, "the verdict is 80% sure, and automatic action needs 90%"),
        ({"about": seen(component="host:h9")}, "h9 is no node of train"),
        ({"about": seen(ambiguous_with=("host:h5",))}, "host:h3 cannot be told apart from host:h5"),
        ({"constraints": out("h3", "h9")}, None),  # h3 does not count against itself
        (
            {"constraints": out(*(f"x{n}" for n in range(8)), at_s=LONG_AGO_S, state="repair")},
            "8 nodes are out of service, and 8 is the limit",
        ),
        ({"constraints": out("h1", at_s=LONG_AGO_S)}, "1 of the 5 hosts of leaf0 are out of service, and 1 may be"),
        ({"constraints": out("h9", at_s=LONG_AGO_S)}, None),  # one node of a block may always go
        ({"constraints": out("h1", at_s=LONG_AGO_S), "within": cluster(block_of={})}, None),
        ({"of": job(min_nodes=8)}, "7 nodes would be left to train, which needs 8"),
        ({"constraints": Constraints(nodes=KNOWN)}, "the controller does not know node h3"),
        ({"constraints": Constraints(controller_trouble="timed out")}, "the controller does not answer: timed out"),
        ({"constraints": UNDONE}, "a person has undone or rejected decision d1 on host:h3"),
        ({"constraints": UNDONE, "about": seen(component="host:h5")}, None),
        ({"of": job(strangers=("h99",))}, "h99 reports on train, and the controller has it on other nodes"),
        (
            {"constraints": Constraints(isolated=[*out("h8", state="returned").isolated, *out("h9").isolated])},
            "2 nodes were isolated in the last hour, and 2 is the limit",
        ),
        ({"constraints": out("h8", "h9"), "settings": PlannerSettings(nodes_per_hour=3)}, None),
    ],
)
def test_what_speaks_against_acting_is_said(given: dict[str, Any], expected: str | None) -> None:
    assert hold(**given) == expected


@pytest.mark.parametrize(
    ("other", "since_s", "is_held"), [("gpu:h5/0", 3, True), ("gpu:h5/0", 99, False), ("nic:h3/eth0", 3, False)]
)
def test_verdicts_of_one_time_on_two_nodes_disagree(other: str, since_s: float, is_held: bool) -> None:
    another = incident(verdict(component=other, since_ns=seconds(since_s)), name="i2")
    message = hold(Constraints(others=[incident(crash()), another]))
    assert message == (
        f"two verdicts disagree: host:h3 and {other} are blamed for the same time" if is_held else None
    )


def test_doing_nothing_is_never_held() -> None:
    found = context(crash(confidence=0.1))
    assert find_hold(incident(), "none", found, Constraints(), PlannerSettings(), T0 + 10**12) is None
