"""Situations for tests of decisions, each with a value for everything that a test does not care about."""

from typing import Any

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Cost, Decision, Isolation
from lockstep.execution import Execution, Isolated
from lockstep.in_job import IN_JOB_ACTS
from lockstep.records import Event
from lockstep.verdict import Impact, Incident, Verdict
from planner.context import ClusterFacts, Context, JobFacts, Layout, Resume

T0 = 1_700_000_000 * NS_PER_S
SAVED = Resume(path="/ckpt/train/400", form="dcp", age_s=600.0, load_s=30.0)
HOSTS = tuple(f"h{number}" for number in range(8))


def seconds(count: float) -> int:
    return T0 + int(count * NS_PER_S)


def verdict(**changes: Any) -> Verdict:  # Any: whatever field a test cares about
    """Return a sure verdict on a slow NIC of h3 that halves the job's speed."""
    what = {"fault_class": "comm_slow", "component": "nic:h3/eth1", "reason": "h3's eth1 sends at half of its rate"}
    sure = {"confidence": 1.0, "grade": "isolate", "coverage": 1.0, "since_ns": T0, "last_seen_ns": T0}
    impact = Impact(step_time_ratio=2.0, ranks_waiting=63)
    return Verdict(**({"id": "v1", "job": "train", "impact": impact} | what | sure | changes))


def crash(**changes: Any) -> Verdict:  # Any: as above
    what = {"fault_class": "crash", "component": "host:h3", "reason": "h3 is gone"}
    return verdict(**(what | {"impact": Impact(ranks_waiting=63)} | changes))


def incident(about: Verdict | None = None, name: str = "i1", opened_s: float = 5.0) -> Incident:
    found = about or verdict()
    at_ns = seconds(opened_s)
    return Incident(id=name, job=found.job, state="open", opened_ns=at_ns, updated_ns=at_ns, verdict=found)


IN_JOB = frozenset(IN_JOB_ACTS)


def job(**changes: Any) -> JobFacts:  # Any: as above
    """Return a job of 8 hosts and 64 GPUs that saved a checkpoint ten minutes ago."""
    fields: dict[str, Any] = {"job": "train", "nodes": HOSTS, "gpus": 64, "resume": SAVED}
    return JobFacts(**(fields | {"resume_smaller": changes.get("resume", SAVED)} | changes))


def cluster(**changes: Any) -> ClusterFacts:  # Any: as above
    """Return a cluster of ten hosts on two leaves, with a controller and one spare."""
    hosts = [*HOSTS, "h8", "h9"]
    block_of = {host: f"leaf{number // 5}" for number, host in enumerate(hosts)}
    known = {"hosts": frozenset(hosts), "spares": ("h8",), "block_of": block_of}
    return ClusterFacts(**(known | {"can_restart": True, "restarts_whole_job": False} | changes))


def context(
    about: Verdict | None = None, of: JobFacts | None = None, within: ClusterFacts | None = None, **more: Any
) -> Context:  # Any: as above
    return Context(about or verdict(), of or job(), within or cluster(), **more)


def pipeline(**changes: int) -> Layout:
    return Layout(**({"tensor": 2, "stages": 4, "replicas": 8, "micro_batches": 32} | changes))


def decision(action: Action = "replace", nodes: tuple[str, ...] = ("h3",), **changes: Any) -> Decision:
    who = {"id": "d1", "job": "train", "incident": "i1", "generation": 1, "verdicts": ("v1",)}
    when = {"created_ns": T0, "expires_ns": seconds(600), "reason": "it is cheapest"}
    what = {
        "action": action,
        "severity": 1,
        "isolate": tuple(Isolation(component=f"host:{node}", node=node, reason="gone") for node in nodes),
        "target": {"nnodes": 8, "dp": 4} if nodes else None,
        "resume": {"checkpoint": "/ckpt/400"},
        "cost": Cost(),
    }
    return Decision(**(who | when | what | changes))


def execution(**changes: Any) -> Execution:  # Any: as above
    who = {"decision": "d1", "incident": "i1", "job": "train", "generation": 1, "approved_by": "policy"}
    what = {"action": "replace", "component": "host:h3", "state": "done", "began_ns": T0}
    return Execution(**(who | what | changes))


def isolated(node: str = "h3", *, at_s: float = 0.0, **changes: Any) -> Isolated:  # Any: as above
    what = {"node": node, "component": f"host:{node}", "decision": "d1", "job": "train", "reason": "slow"}
    when = {"state": "isolated", "since_ns": seconds(at_s), "changed_ns": seconds(at_s)}
    return Isolated(**(what | when | changes))


def event(kind: str, message: str = "", **changes: Any) -> Event:  # Any: as above
    fields: dict[str, Any] = {"host": "h3", "ts_ns": T0, "source": "kernel_log", "component": "host:h3"}
    return Event(**(fields | {"kind": kind, "severity": "error", "message": message} | changes))
