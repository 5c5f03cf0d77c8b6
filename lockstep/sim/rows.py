"""Simulated operations as the rows that the collectors of their hosts would send."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lockstep import __version__
from lockstep.arrow import fill_rows, schema_of
from lockstep.sim.communicators import Communicators
from lockstep.sim.gpu_readings import gpu_uuid
from lockstep.sim.happenings import FIRST_PID
from lockstep.sim.network import Floats
from lockstep.sim.operations import Operation, Transfers
from lockstep.sim.placement import Ints
from lockstep.sim.story import Story
from lockstep.sim.wires import NEVER, Times
from lockstep.tables import TABLE_BY_NAME

Rows = dict[str, pa.Table]
PLUGIN = f"sim {__version__}"


@dataclass(frozen=True)
class Identity:
    """Whose rows these are and when the story began."""

    job: str
    start_ns: int
    attempt: int = 0  # of the story's first attempt


@dataclass(frozen=True)
class Desk:
    """Writes rows as the hosts would: on their clocks, with what is known of NICs, of what became known at all."""

    story: Story
    identity: Identity
    offset_ns: Ints  # of each host's clock
    drift: Floats

    def moments(self, hosts: Ints, since_start: Times) -> Ints:
        """Return times as the hosts' clocks show them; what never happens is as good as any time."""
        known = np.minimum(since_start, NEVER / 2)
        shown = known + self.offset_ns[hosts] + known * self.drift[hosts]
        return shown.astype(np.int64) + self.identity.start_ns

    def comms(self, comms: Communicators, attempt: int, begin_ns: float) -> pa.Table:
        members, placement = comms.members, comms.placement
        ranks = members.ravel()
        gpus = zip(placement.host_of[ranks].tolist(), placement.gpu_of[ranks].tolist(), strict=True)
        return self.job_rows(
            "comms",
            placement.host_of[ranks],
            attempt,
            comm=np.repeat(comms.ids, comms.size),
            name=comms.kind,
            rank=np.tile(np.arange(comms.size), len(members)),
            nranks=comms.size,
            nnodes=np.repeat(comms.hosts_in, comms.size),
            world_rank=ranks,
            pid=FIRST_PID + placement.gpu_of[ranks],
            gpu=placement.gpu_of[ranks],
            gpu_uuid=pa.array([gpu_uuid(f"h{host}", gpu) for host, gpu in gpus]),
            plugin_version=PLUGIN,
            detail="steps",
            init_ns=self.moments(placement.host_of[ranks], np.full(len(ranks), begin_ns)),
        )

    def collectives(self, operation: Operation) -> pa.Table:
        """Return the rows of the ranks for which the operation ended."""
        done = np.flatnonzero(operation.end < NEVER / 2)
        hosts = operation.comms.placement.host_of[operation.rank[done]]
        return self.job_rows(
            "collectives",
            hosts,
            operation.attempt,
            comm=operation.comms.ids[operation.group[done]],
            func=operation.func,
            peer=operation.peer[done],
            seq=operation.seq[done],
            replay=0,
            seq_valid=True,
            captured=False,
            epoch=0,
            rank=operation.place[done],
            algo=operation.algo,
            proto="SIMPLE",
            dtype="ncclBfloat16",
            bytes=operation.bytes[done],
            channels=operation.comms.channels,
            enqueue_ns=self.moments(hosts, operation.enqueue[done]),
            start_ns=self.moments(hosts, operation.start[done]),
            end_ns=self.moments(hosts, operation.end[done]),
            clock="gpu",
        )

    def transfers(self, operation: Operation) -> pa.Table:
        """Return both sides of every connection between hosts that got its work done."""
        moved = operation.transfers
        sides = [self._side(operation, moved, side) for side in operation.sides] if moved else []
        return pa.concat_tables(sides) if sides else schema_of(TABLE_BY_NAME["transfers"]).empty_table()

    def _side(self, operation: Operation, moved: Transfers, side: str) -> pa.Table:
        is_send = side == "send"
        first, last = (moved.send_first, moved.send_last) if is_send else (moved.recv_first, moved.recv_last)
        done = np.flatnonzero(last < NEVER / 2)
        hosts = operation.comms.placement.host_of[moved.seen_from(side).rank[done]]
        return self.job_rows(
            "transfers",
            hosts,
            operation.attempt,
            transport=self.story.cluster.transport,
            bytes=moved.bytes[done],
            steps=moved.steps,
            detail="steps",
            first_ns=self.moments(hosts, first[done]),
            last_ns=self.moments(hosts, last[done]),
            **(_send_waits(moved, done) if is_send else _recv_waits(moved, done)),
            **self.edge_columns(operation, moved, side, done),
        )

    def edge_columns(self, operation: Operation, moved: Transfers, side: str, edges: Ints) -> Mapping[str, object]:
        """Return what says of which operation and connection a row is, as one side of it knows it."""
        end = moved.seen_from(side)
        return {
            "comm": operation.comms.ids[moved.group[edges]],
            "func": operation.func,
            "seq": self.seq_of(operation, moved)[edges],
            "replay": 0,
            "epoch": 0,
            "rank": end.place[edges],
            "channel": moved.channel[edges],
            "peer": end.peer[edges],
            "direction": side,
            "nic": self.nics(end.nic[edges]),
            "sport": moved.sport[edges] if self.story.telling.nics else None,
        }

    @staticmethod
    def seq_of(operation: Operation, moved: Transfers) -> Ints:
        """Return the number of each connection's operation: its group's, or its own for sends and receives."""
        if operation.func in ("Send", "Recv"):
            crosses = operation.comms.placement.host_of
            apart = crosses[operation.rank] != crosses[operation.comms.members[operation.group, operation.peer]]
            own: Ints = operation.seq[apart]
            return own
        by_group = np.zeros(len(operation.comms.members), np.int64)
        by_group[operation.group] = operation.seq
        return by_group[moved.group]

    def connections(self, operation: Operation) -> pa.Table:
        """Return what is known of the connections of an operation's first run."""
        moved = operation.transfers
        if moved is None or not self.story.telling.nics:
            return schema_of(TABLE_BY_NAME["connections"]).empty_table()
        return pa.concat_tables([self._connection(operation, moved, side) for side in operation.sides])

    def _connection(self, operation: Operation, moved: Transfers, side: str) -> pa.Table:
        near, far = moved.seen_from(side), moved.seen_from("recv" if side == "send" else "send")
        host_of = operation.comms.placement.host_of
        return self.job_rows(
            "connections",
            host_of[near.rank],
            operation.attempt,
            comm=operation.comms.ids[moved.group],
            rank=near.place,
            peer=near.peer,
            channel=moved.channel,
            direction=side,
            transport=self.story.cluster.transport,
            nic=self.nics(near.nic),
            local=self._addresses(host_of[near.rank], near.nic),
            remote=self._addresses(host_of[far.rank], far.nic),
            sport=moved.sport,
            source="nccl_log",
            confidence=1.0,
            seen_ns=self.moments(host_of[near.rank], moved.send_first),
        )

    def nics(self, nics: Ints) -> pa.Array | None:
        """Return the names of NICs on their hosts, where it is told which NIC was used."""
        if not self.story.telling.nics:
            return None
        names = pa.array([f"eth{number}" for number in range(self.story.cluster.nics_per_host)])
        return names.take(pa.array(nics % self.story.cluster.nics_per_host))

    def _addresses(self, hosts: Ints, nics: Ints) -> pa.Array:
        numbers = (nics % self.story.cluster.nics_per_host).tolist()
        pairs = zip(hosts.tolist(), numbers, strict=True)
        return pa.array([f"10.{number}.{host >> 8}.{host & 255}" for host, number in pairs], pa.string())

    def steps(self, placement_hosts: Ints, attempt: int, step: int, begin: Times, end: Times) -> pa.Table:
        return self.job_rows(
            "steps",
            placement_hosts,
            attempt,
            world_rank=np.arange(len(begin)),
            step=step,
            start_ns=self.moments(placement_hosts, begin),
            end_ns=self.moments(placement_hosts, end),
            source="told",
        )

    def agents(self, second: int) -> pa.Table:
        """Return a heartbeat of every host, at a second of the story."""
        hosts = np.arange(self.story.cluster.all_hosts)
        now = self.moments(hosts, np.full(len(hosts), float(second)))
        return self.host_rows(
            "agents",
            hosts,
            ts_ns=now,
            version=PLUGIN,
            watermark_ns=now,
            dropped=0,
            spool_bytes=0,
            cpu_ns=second // 100,
        )

    def job_rows(self, table: str, hosts: Ints, attempt: int, **columns: object) -> pa.Table:
        attempt += self.identity.attempt
        return self.host_rows(table, hosts, job=self.identity.job, attempt=attempt, **columns)

    def host_rows(self, table: str, hosts: Ints, **columns: object) -> pa.Table:
        """Return rows made by these hosts; single values are repeated, missing ones are null."""
        names = pa.array([f"h{host}" for host in range(self.story.cluster.all_hosts)])
        return fill_rows(TABLE_BY_NAME[table], len(hosts), columns | {"host": names.take(pa.array(hosts))})


def _send_waits(moved: Transfers, done: Ints) -> Mapping[str, Ints]:
    waits = {"gpu_wait_ns": moved.gpu_wait, "peer_wait_ns": moved.peer_wait, "wire_ns": moved.wire}
    return {name: values[done].astype(np.int64) for name, values in waits.items()}


def _recv_waits(moved: Transfers, done: Ints) -> Mapping[str, Ints]:
    waits = {"gpu_wait_ns": moved.recv_gpu_wait, "peer_wait_ns": moved.recv_wait, "flush_ns": moved.flush}
    return {name: values[done].astype(np.int64) for name, values in waits.items()}
