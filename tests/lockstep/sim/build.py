"""Small clusters and stories for tests of the simulator; without noise unless a test asks for it."""

from typing import Any

from lockstep.sim.story import ClusterShape, JobShape, Noise, Story
from lockstep.sim.timeline import Turn, parse_turn

SILENCE = Noise(compute=0.0, transfer=0.0, enqueue_us=0.0)


def cluster(**fields: Any) -> ClusterShape:
    """Return four hosts with four GPUs and two NICs each, on two leaves, unless told otherwise."""
    usual = {"hosts": 4, "gpus_per_host": 4, "nics_per_host": 2, "hosts_per_leaf": 2, "spines": 2, "nic_gbps": 100.0}
    return ClusterShape.model_validate(usual | fields)


def story(*timeline: Turn | str, noise: Noise = SILENCE, **fields: Any) -> Story:
    """Return a story on the usual cluster: 50 ms of compute, then two all-reduces; lines are parsed."""
    usual = {
        "name": "test",
        "summary": "for a test",
        "duration_s": 10.0,
        "cluster": cluster(),
        "job": JobShape(compute_ms=50.0, allreduce_mb=(64, 32)),
    }
    turns = tuple(parse_turn(turn) if isinstance(turn, str) else turn for turn in timeline)
    return Story(**usual | {"timeline": turns, "noise": noise} | fields)


def slow(part: str, rate: float, at_s: float = 0.0, **fields: Any) -> Turn:
    """Return a turn after which a part has a share of its rate."""
    return Turn(at_s=at_s, effect="rate", part=part, amount=rate, **fields)
