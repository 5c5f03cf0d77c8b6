"""Fabrics and flows to order, sound and broken, for tests of plans."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from planner.paths.flows import Flow
from planner.paths.network import Network, build_network


def flows_between(pairs: list[tuple[str, str]], gbps: float = 100.0) -> list[Flow]:
    return [Flow(id=f"f{place}", src=src, dst=dst, gbps=gbps) for place, (src, dst) in enumerate(pairs)]


def some_flows(network: Network, count: int, seed: int, sizes: tuple[float, ...] = (100.0,)) -> list[Flow]:
    """Return flows between NICs drawn at random, on one plane where there are several."""
    rng = np.random.default_rng(seed)
    planes = {f"{host.id}/{nic.id}": nic.plane for host in network.topology.hosts for nic in host.nics}
    ports = np.array(sorted(network.ports))
    flows: list[Flow] = []
    while len(flows) < count:
        src, dst = rng.choice(ports, 2)
        if src != dst and planes[str(src)] == planes[str(dst)]:
            flows.append(Flow(id=f"f{len(flows)}", src=str(src), dst=str(dst), gbps=float(rng.choice(sizes))))
    return flows


def broken(network: Network, dead: int, slow: int, seed: int) -> Network:
    """Return the network with some links between switches dead and some at half their rate."""
    rng = np.random.default_rng(seed)
    cables = np.unique(np.flatnonzero(network.fabric) // 2)
    hit = rng.permutation(cables)[: dead + slow]
    gbps = network.gbps.copy()
    for cable, share in zip(hit.tolist(), [0.0] * dead + [0.5] * slow, strict=False):
        gbps[[2 * cable, 2 * cable + 1]] *= share
    return replace(network, gbps=gbps)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    kind = draw(st.sampled_from(("leaf_spine", "rails", "planes", "fat_tree")))
    match kind:
        case "leaf_spine":
            leaves, spines = draw(st.integers(1, 5)), draw(st.integers(1, 5))
            topology = leaf_spine(hosts=3 * leaves, nics_per_host=1, leaves=leaves, spines=spines)
        case "rails":
            topology = rail_optimised(hosts=4, rails=draw(st.sampled_from((2, 4))), spines=draw(st.integers(1, 4)))
        case "planes":
            topology = dual_plane(hosts=4, leaves_per_plane=2, spines_per_plane=draw(st.integers(1, 3)))
        case _:
            topology = fat_tree(4)
    network = build_network(topology)
    return broken(network, draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 99)))
