"""Incidents and decisions for tests, each with a value for everything that a test does not care about."""

from typing import Literal

from lockstep.decision import Cost, Decision, Isolation, Option
from lockstep.verdict import Impact, Incident, RuledOut, Verdict


def incident(
    incident_id: str = "i1",
    *,
    job: str = "train",
    state: Literal["open", "closed"] = "open",
    opened_ns: int = 100,
    updated_ns: int = 200,
) -> Incident:
    return Incident(
        id=incident_id,
        job=job,
        state=state,
        opened_ns=opened_ns,
        updated_ns=updated_ns,
        closed_ns=updated_ns if state == "closed" else None,
        closed_because="the NIC was replaced" if state == "closed" else None,
        verdict=verdict(job),
    )


def verdict(job: str) -> Verdict:
    """Return a verdict that fills every kind of field."""
    return Verdict(
        id="v1",
        job=job,
        fault_class="comm_slow",
        component="nic:h3/eth1",
        side="tx",
        confidence=0.97,
        grade="isolate",
        since_ns=100,
        last_seen_ns=200,
        impact=Impact(step_time_ratio=1.42, ranks_waiting=255),
        reason="h3's eth1 sends at a tenth of its rate, says Zoë",
        evidence=({"rate_gbps": 38.5, "windows": [1, 2]},),
        ruled_out=(RuledOut(component="link:leaf1--spine2", because="others cross it at full rate"),),
        ambiguous_with=("link:h3/eth1--leaf1",),
        coverage=0.99,
    )


def decision(decision_id: str = "d1", *, incident: str = "i1", job: str = "train", created_ns: int = 300) -> Decision:
    return Decision(
        id=decision_id,
        job=job,
        incident=incident,
        generation=1,
        created_ns=created_ns,
        expires_ns=created_ns + 1,
        severity=2,
        action="replace",
        isolate=(Isolation(component="nic:h3/eth1", reason="sends slowly", evidence=("v1",)),),
        target={"nnodes": 31, "dp": 31},
        resume={"source": "checkpoint"},
        cost=Cost(downtime_s=90.5, throughput_after=1.0),
        alternatives=(Option(action="none", cost=Cost(throughput_after=0.7), reason="goes on slowly"),),
        verdicts=("v1",),
        reason="a spare is cheaper than waiting",
    )
