"""Looks made by hand: contexts of a job with 64 ranks on 8 hosts, and findings in them."""

from collections.abc import Iterable

import pyarrow as pa

from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.window import Context, Finding, Window
from lockstep.verdict import FaultClass, Side
from tests.analyzer.build import schema
from tests.builders import SECOND, T0

HOSTS, GPUS = 8, 8
HOP_NS, WINDOW_NS = 2 * SECOND, 6 * SECOND
WORLD = 7  # the communicator of everybody

MEMBER = schema(
    """comm:uint64 rank:uint32 nranks:uint32 nnodes:uint32 host:string pid:uint32 gpu:uint16 world_rank:uint32
    init_ns:int64 plugin_version:string"""
)


def world(hosts: int = HOSTS, gpus: int = GPUS, nodes: int | None = None, gpu: int | None = None) -> Roster:
    """Return the roster of a job with one communicator, ranks counted host by host."""
    usual = {"comm": WORLD, "nranks": hosts * gpus, "nnodes": hosts if nodes is None else nodes, "init_ns": T0}
    members = [
        usual
        | {"rank": rank, "host": f"h{rank // gpus}", "pid": 1_000 + rank, "world_rank": rank}
        | {"gpu": rank % gpus if gpu is None else gpu}
        for rank in range(hosts * gpus)
    ]
    return build_roster(pa.Table.from_pylist(members, schema=MEMBER))


ROSTER = world()


def end_of(number: int) -> int:
    """Return when the evaluation with that number ends."""
    return T0 + WINDOW_NS + number * HOP_NS


def look(
    number: int = 0,
    *,
    silent: Iterable[str] = (),
    lost: Iterable[str] = (),
    roster: Roster = ROSTER,
    attempt: int = 0,
) -> Context:
    """Return the evaluation with that number; each begins a hop after the one before."""
    end_ns = end_of(number)
    window, missing, gone = Window(end_ns - WINDOW_NS, end_ns), frozenset(silent), frozenset(lost)
    return Context("train", attempt, window, end_ns - HOP_NS, roster, None, missing, SECOND // 2, lost=gone)


def found(
    component: str = "nic:h3/eth1",
    fault_class: FaultClass = "comm_slow",
    side: Side | None = None,
    likelihood: float = 0.9,
    *,
    doubt: Iterable[str] = (),
    is_certain: bool = False,
    since_ns: int | None = None,
) -> Finding:
    """Return a finding about a part, in doubt with others."""
    return Finding(
        fault_class=fault_class,
        component=component,
        side=side,
        likelihood=likelihood,
        reason=f"{component} is slow",
        ambiguous_with=tuple(doubt),
        is_certain=is_certain,
        since_ns=since_ns,
        may_isolate=True,
    )
