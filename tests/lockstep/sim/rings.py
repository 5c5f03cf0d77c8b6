"""Rings to order, for tests of wires and of what runs on them."""

import numpy as np

from lockstep.sim.collectives import Kernels, run_ring
from lockstep.sim.story import Doing, JobShape, Layout
from lockstep.sim.wires import Edges
from tests.lockstep.sim.build import cluster

CHUNK_NS = 100.0
LINE = cluster(hosts=8, gpus_per_host=1, nics_per_host=1, hosts_per_leaf=4)  # a ring of eight hosts
TENSOR_THEN_DATA = JobShape(
    layout=Layout(tp=4),
    step=(
        Doing(do="compute", ms=50.0),
        Doing(do="AllReduce", mb=8, group="tp"),
        Doing(do="ReduceScatter", mb=8, group="dp"),
    ),
)


def uniform(places: int, has_credits: bool = True, socket_steps: int = 0, **slow: float) -> Edges:
    """Return a ring in which every wire takes 100 ns a step, or longer by place: `at_3=400`."""
    step = np.full((1, places), CHUNK_NS)
    for name, value in slow.items():
        step[0, int(name.removeprefix("at_"))] = value
    zero = np.zeros_like(step)
    return Edges(step, zero + 1.0, zero, zero, has_credits, socket_steps)


def started(edges: Edges) -> Kernels:
    return Kernels(np.zeros_like(edges.step_ns))


def head_states(edges: Edges, kernels: Kernels, steps: int) -> tuple[list[int], list[int]]:
    """Return in which state each place's sending and receiving side stands for good; 0: it does not."""
    wires, _ = run_ring(edges, kernels, steps)
    return wires.send_state[0].tolist(), np.roll(wires.recv_state[0], 1).tolist()


def replaced(edges: Edges, **fields: object) -> Edges:
    return Edges(**vars(edges) | fields)
