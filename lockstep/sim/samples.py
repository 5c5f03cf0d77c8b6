"""What is known of single network steps, and of the ways that connections take."""

import numpy as np
import pyarrow as pa

from lockstep.arrow import schema_of
from lockstep.sim.network import Network
from lockstep.sim.operations import Operation, Transfers
from lockstep.sim.rows import Desk
from lockstep.sim.wires import NEVER, Steps, Times
from lockstep.tables import TABLE_BY_NAME

_PORTS = {"ib": ("roce", 4791), "socket": ("tcp", 0)}  # protocol and destination port; of TCP nobody knows it


def step_samples(desk: Desk, operation: Operation, moved: Transfers) -> pa.Table:
    """Return both sides of every step of an operation whose steps were kept."""
    trace = moved.trace or Steps()
    sides = {
        "send": (trace.posted, trace.handed, trace.sent),
        "recv": (trace.awaited, trace.arrived, trace.taken),
    }
    return pa.concat_tables([_side(desk, operation, moved, side, sides[side]) for side in operation.sides])


def _side(
    desk: Desk, operation: Operation, moved: Transfers, side: str, marks: tuple[list[Times], list[Times], list[Times]]
) -> pa.Table:
    posted, wire, done = (np.stack(moments) for moments in marks)
    step, edge = np.nonzero(done < NEVER / 2)
    hosts = operation.comms.placement.host_of[moved.seen_from(side).rank[edge]]
    return desk.job_rows(
        "step_samples",
        hosts,
        operation.attempt,
        step=step,
        bytes=moved.bytes[edge] // moved.steps,
        posted_ns=desk.moments(hosts, posted[step, edge]),
        wire_ns=desk.moments(hosts, wire[step, edge]),
        done_ns=desk.moments(hosts, done[step, edge]),
        **desk.edge_columns(operation, moved, side, edge),
    )


def paths(desk: Desk, operation: Operation, network: Network) -> pa.Table:
    """Return the links that each sending connection of an operation takes, as probes would have found them."""
    moved = operation.transfers
    if moved is None or not desk.story.telling.paths or "send" not in operation.sides:
        return schema_of(TABLE_BY_NAME["paths"]).empty_table()
    hosts, far = (operation.comms.placement.host_of[ranks] for ranks in (moved.src, moved.dst))
    proto, dport = _PORTS.get(desk.story.cluster.transport, ("tcp", 0))
    ways = [[link // 2 for link in path if link != network.nowhere] for path in moved.paths.tolist()]
    links = [[network.links[link].id for link in way] for way in ways]
    return desk.host_rows(
        "paths",
        hosts,
        src_nic=desk.nics(moved.tx_nic),
        dst=pa.array([f"h{host}" for host in far.tolist()]),
        dst_nic=desk.nics(moved.rx_nic),
        proto=proto,
        sport=moved.sport,
        dport=dport,
        links=pa.array(links, schema_of(TABLE_BY_NAME["paths"]).field("links").type),
        seen_ns=desk.moments(hosts, moved.send_first),
        confidence=1.0,
    )
