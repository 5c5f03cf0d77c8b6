"""Hangs of one family in clusters, layouts and moments that a seed draws: each names the part that broke."""

from random import Random

import pytest

from analyzer.hang.facts import HangMemory, HangOptions
from analyzer.hang.hangs import find_hangs
from analyzer.hang.reading import read_progress
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Window
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from simulator.scenario import Scenario, build_topology
from tests.builders import SECOND, T0
from tests.simulated import JOB, load, tell
from tests.tiers import long_except

SEEDS = range(101, 107)  # no rule was chosen by looking at these


def cluster(draw: Random, hosts: int, **fields: object) -> dict[str, object]:
    usual = {"gpus_per_host": 2, "nics_per_host": 2, "hosts_per_leaf": 2, "spines": 2, "nic_gbps": 100.0}
    return usual | {"hosts": hosts, "transport": draw.choice(["ib", "socket"])} | fields


def scenario(fields: dict[str, object], at_s: float, part: str, fault: str, lasting_s: float = 10) -> Scenario:
    text = f"at {at_s:.2f} s fail {part} {fault}"
    values = fields | {"name": "inline", "summary": "s", "duration_s": int(at_s + lasting_s), "timeline": [text]}
    return Scenario.model_validate(values)


def long_operation(draw: Random) -> tuple[Scenario, str]:
    """A NIC dies in an all-reduce that takes most of a step, often before a step has been seen at all."""
    hosts, takes_s = draw.choice([4, 8]), draw.choice([4, 12])
    part = f"nic:h{draw.randrange(hosts)}/eth{draw.randrange(2)}"
    job = {"compute_ms": draw.choice([100, 400]), "allreduce_mb": [12_500 * takes_s]}
    at_s = draw.choice([1, 2]) * (takes_s + 0.4) + draw.uniform(0.2, 0.8) * takes_s
    return scenario({"cluster": cluster(draw, hosts), "job": job}, at_s, part, "down", 14), part


_EXCHANGE = {"do": "AllToAll", "mb": 64, "group": "ep", "times": 2}


def spine_link(draw: Random) -> tuple[Scenario, str]:
    """A link between leaf and spine dies; probes and ports of switches are read."""
    hosts = draw.choice([4, 8])
    part = f"link:leaf{draw.randrange(hosts // 2)}--spine{draw.randrange(2)}"
    ring = {"compute_ms": 300, "allreduce_mb": [500, 500]}
    experts = {"layout": {"ep": 2 * hosts}, "step": [{"do": "compute", "ms": 200}, _EXCHANGE]}
    fields = {"cluster": cluster(draw, hosts, routing=draw.choice(["planned", "ecmp"])), "telemetry": {"paths": True}}
    # Ports are read every ten seconds: once before, and once after it.
    return scenario(fields | {"job": draw.choice([ring, experts])}, 11 + draw.random(), part, "down"), part


def pipeline(draw: Random) -> dict[str, object]:
    tp, pp = draw.choice([(2, 2), (2, 4), (1, 4)])
    stages = {"do": "pipeline", "ms": draw.choice([10, 30]), "backward_ms": 40, "mb": 32}
    step = [stages | ({"tp_mb": 16} if tp > 1 else {}), {"do": "AllReduce", "mb": 200, "group": "dp"}]
    job = {"layout": {"tp": tp, "pp": pp}, "micro_batches": draw.choice([3, 4]), "step": step}
    return {"cluster": cluster(draw, 4), "job": job}


def stuck_kernel(draw: Random) -> tuple[Scenario, str]:
    """A kernel of one GPU of a pipeline never ends, and no collector says that it is there."""
    part = f"gpu:h{draw.randrange(4)}/{draw.randrange(2)}"
    return scenario(pipeline(draw), 5 + draw.random(), part, "stuck"), part


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_except(SEEDS[:1], SEEDS))
@pytest.mark.parametrize("family", [long_operation, spine_link, stuck_kernel])
def test_part_that_broke_is_named(embedded_store: Store, family: object, seed: int) -> None:
    assert callable(family)
    case, part = family(Random(seed))
    load(embedded_store, tell(case, seed, every_s=int(case.duration_s)))
    end_ns = T0 + int(case.duration_s) * SECOND
    window, topology = Window(end_ns - 5 * SECOND, end_ns), TopologyIndex(build_topology(case.cluster))
    roster = read_roster(embedded_store, JOB, 0)
    context = Context(JOB, 0, window, end_ns, roster, topology, frozenset(), None)
    findings, _ = find_hangs(read_progress(embedded_store, context), HangMemory(), context, HangOptions())
    assert [finding.component for finding in findings] == [part], [finding.reason for finding in findings]
