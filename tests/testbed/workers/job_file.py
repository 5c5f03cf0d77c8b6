"""What one rank is told of its job, one fact a line; nccl_plugin/tests/worker_job.c reads it."""

from collections.abc import Iterator, Mapping, Sequence

from tests.testbed.workers.plan import Collective, Compute, Hop, Item, JobPlan, Kind

ALONE = -1  # no peer


def write_job(plan: JobPlan, rank: int, addresses: Sequence[str]) -> str:
    """Return the job file of a rank; `addresses` are those of its host's NICs, in the order of the plan."""
    kinds = plan.kinds_of(rank)
    places = {kind: place for place, kind in enumerate(kinds)}
    lines = [
        f"rank {rank} {plan.layout.ranks}",
        *(f"host {other} {host}" for other, host in enumerate(plan.hosts)),
        *(f"nic {name} {address}" for name, address in zip(plan.nics, addresses, strict=True)),
        f"sizes {plan.chunk_bytes} {plan.buffer_bytes}",
        f"steps {plan.steps} {plan.seed}",
        *(_comm_line(plan, rank, kind) for kind in kinds),
        *_port_lines(plan, rank, places),
        *_item_lines(plan, rank, plan.items_of(rank), places),
        *(["second", *_item_lines(plan, rank, plan.second_step, places)] if plan.second_step else []),
    ]
    return "\n".join(lines) + "\n"


def _comm_line(plan: JobPlan, rank: int, kind: Kind) -> str:
    group = plan.layout.group_of(kind, rank)
    return f"comm {plan.comm_id(kind, group):x} {kind} {' '.join(map(str, group))}"


def _port_lines(plan: JobPlan, rank: int, places: Mapping[Kind, int]) -> Iterator[str]:
    for (kind, channel, src, dst), port in plan.source_ports.items():
        if src == rank and kind in places:
            peer = plan.layout.group_of(kind, rank).index(dst)
            yield f"port {places[kind]} {channel} {peer} {port}"


def _item_lines(plan: JobPlan, rank: int, items: Sequence[Item], places: Mapping[Kind, int]) -> Iterator[str]:
    begins_group = True  # whether the hop that opens the present group was passed over, or there is none
    for item in items:
        line = _item_line(plan, rank, item, places)
        is_joined = isinstance(item, Hop) and item.joined
        if line:
            yield f"with {line}" if is_joined and not begins_group else _opening(item, line)
            begins_group = isinstance(item, Compute)
        elif not is_joined:
            begins_group = True


def _opening(item: Item, line: str) -> str:
    return line if isinstance(item, Compute) else f"op {line}"


def _item_line(plan: JobPlan, rank: int, item: Item, places: Mapping[Kind, int]) -> str:
    """Return the facts of an item; none for a hop that leads out of the group."""
    match item:
        case Compute(ms=ms, noise=noise, spins=spins):
            return f"compute {ms} {noise} {'spin' if spins else 'sleep'}"
        case Collective(comm=kind, func=func, algo=algo, bytes=size, channels=channels):
            return f"{places[kind]} {func} {algo} {size} {channels} {ALONE}"
        case Hop(comm=kind, func=func, bytes=size, channels=channels):
            group = plan.layout.group_of(kind, rank)
            peer = group.index(rank) + item.offset
            is_there = 0 <= peer < len(group) and item.offset != 0
            return f"{places[kind]} {func} RING {size} {channels} {peer}" if is_there else ""
