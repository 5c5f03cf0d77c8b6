"""Simulated operations as the rows that the collectors of their hosts would send."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from lockstep import __version__
from lockstep.arrow import fill_rows, schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import split_end
from simulator.devices import gpu_uuid
from simulator.events import FIRST_PID
from simulator.network import Communicators, Network, flow_key
from simulator.operations import Operation, Transfers
from simulator.pairs import NEVER, Floats, Ints, Steps, Times
from simulator.scenario import Scenario
from simulator.traffic import LinkFaults

Rows = dict[str, pa.Table]
PLUGIN = f"sim {__version__}"


@dataclass(frozen=True)
class Identity:
    """Whose rows these are and when the scenario began."""

    job: str
    start_ns: int
    attempt: int = 0  # of the scenario's first attempt


@dataclass(frozen=True)
class RowWriter:
    """Writes rows as the hosts would: on their clocks, with what is known of NICs, of what became known at all."""

    scenario: Scenario
    identity: Identity
    offset_ns: Ints  # of each host's clock
    drift: Floats

    def timestamps(self, hosts: Ints, since_start: Times) -> Ints:
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
            init_ns=self.timestamps(placement.host_of[ranks], np.full(len(ranks), begin_ns)),
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
            rank=operation.index[done],
            algo=operation.algo,
            proto="SIMPLE",
            dtype="ncclBfloat16",
            bytes=operation.bytes[done],
            channels=operation.comms.channels,
            enqueue_ns=self.timestamps(hosts, operation.enqueue[done]),
            start_ns=self.timestamps(hosts, operation.start[done]),
            end_ns=self.timestamps(hosts, operation.end[done]),
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
            transport=self.scenario.cluster.transport,
            bytes=moved.bytes[done],
            steps=moved.steps,
            detail="steps",
            first_ns=self.timestamps(hosts, first[done]),
            last_ns=self.timestamps(hosts, last[done]),
            **{column: getattr(moved, wait)[done].astype(np.int64) for column, wait in _WAITS[is_send].items()},
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
            "rank": end.index[edges],
            "channel": moved.channel[edges],
            "peer": end.peer[edges],
            "direction": side,
            "nic": self.nics(end.nic[edges]),
            "sport": moved.sport[edges] if self.scenario.telemetry.nics else None,
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
        if moved is None or not self.scenario.telemetry.nics:
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
            rank=near.index,
            peer=near.peer,
            channel=moved.channel,
            direction=side,
            transport=self.scenario.cluster.transport,
            nic=self.nics(near.nic),
            local=self._addresses(host_of[near.rank], near.nic),
            remote=self._addresses(host_of[far.rank], far.nic),
            sport=moved.sport,
            source="nccl_log",
            confidence=1.0,
            seen_ns=self.timestamps(host_of[near.rank], moved.send_first),
        )

    def nics(self, nics: Ints) -> pa.Array | None:
        """Return the names of NICs on their hosts, where it is known which NIC was used."""
        return self.name_nics(nics) if self.scenario.telemetry.nics else None

    def name_nics(self, nics: Ints) -> pa.Array:
        names = pa.array([f"eth{number}" for number in range(self.scenario.cluster.nics_per_host)])
        return names.take(pa.array(nics % self.scenario.cluster.nics_per_host))

    def name_hosts(self, hosts: Ints) -> pa.Array:
        names = pa.array([f"h{host}" for host in range(self.scenario.cluster.all_hosts)])
        return names.take(pa.array(hosts))

    def _addresses(self, hosts: Ints, nics: Ints) -> pa.Array:
        numbers = (nics % self.scenario.cluster.nics_per_host).tolist()
        pairs = zip(hosts.tolist(), numbers, strict=True)
        return pa.array([f"10.{number}.{host >> 8}.{host & 255}" for host, number in pairs], pa.string())

    def steps(self, placement_hosts: Ints, attempt: int, step: int, begin: Times, end: Times) -> pa.Table:
        return self.job_rows(
            "steps",
            placement_hosts,
            attempt,
            world_rank=np.arange(len(begin)),
            step=step,
            start_ns=self.timestamps(placement_hosts, begin),
            end_ns=self.timestamps(placement_hosts, end),
            source="told",
        )

    def agents(self, second: int) -> pa.Table:
        """Return a heartbeat of every host, at a second of the scenario."""
        hosts = np.arange(self.scenario.cluster.all_hosts)
        now = self.timestamps(hosts, np.full(len(hosts), float(second)))
        counts = {"dropped": 0, "spool_bytes": 0, "cpu_ns": second // 100}
        return self.host_rows("agents", hosts, ts_ns=now, version=PLUGIN, watermark_ns=now, **counts)

    def job_rows(self, table: str, hosts: Ints, attempt: int, **columns: object) -> pa.Table:
        attempt += self.identity.attempt
        return self.host_rows(table, hosts, job=self.identity.job, attempt=attempt, **columns)

    def host_rows(self, table: str, hosts: Ints, **columns: object) -> pa.Table:
        """Return rows made by these hosts; single values are repeated, missing ones are null."""
        return fill_rows(TABLE_BY_NAME[table], len(hosts), columns | {"host": self.name_hosts(hosts)})


_WAITS = {  # columns of rows by whether a side sends, and what they are called in transfers
    True: {"gpu_wait_ns": "gpu_wait", "peer_wait_ns": "peer_wait", "wire_ns": "wire"},
    False: {"gpu_wait_ns": "recv_gpu_wait", "peer_wait_ns": "recv_wait", "flush_ns": "flush"},
}
_PORTS = {"ib": ("roce", 4791), "socket": ("tcp", 0)}  # protocol and destination port; of TCP nobody knows it


def step_samples(writer: RowWriter, operation: Operation, moved: Transfers) -> pa.Table:
    """Return both sides of every step of an operation whose steps were kept."""
    trace = moved.trace or Steps()
    sides = {"send": (trace.posted, trace.handed, trace.sent), "recv": (trace.awaited, trace.arrived, trace.taken)}
    return pa.concat_tables([_step_side(writer, operation, moved, side, sides[side]) for side in operation.sides])


def _step_side(
    writer: RowWriter,
    operation: Operation,
    moved: Transfers,
    side: str,
    marks: tuple[list[Times], list[Times], list[Times]],
) -> pa.Table:
    posted, wire, done = (np.stack(timestamps) for timestamps in marks)
    step, edge = np.nonzero(done < NEVER / 2)
    hosts = operation.comms.placement.host_of[moved.seen_from(side).rank[edge]]
    return writer.job_rows(
        "step_samples",
        hosts,
        operation.attempt,
        step=step,
        bytes=moved.bytes[edge] // moved.steps,
        posted_ns=writer.timestamps(hosts, posted[step, edge]),
        wire_ns=writer.timestamps(hosts, wire[step, edge]),
        done_ns=writer.timestamps(hosts, done[step, edge]),
        **writer.edge_columns(operation, moved, side, edge),
    )


def paths(writer: RowWriter, operation: Operation, network: Network) -> pa.Table:
    """Return the links that each sending connection of an operation takes, as probes would have found them."""
    moved = operation.transfers
    if moved is None or not writer.scenario.telemetry.paths or "send" not in operation.sides:
        return schema_of(TABLE_BY_NAME["paths"]).empty_table()
    hosts, far = (operation.comms.placement.host_of[ranks] for ranks in (moved.src, moved.dst))
    proto, dport = _PORTS.get(writer.scenario.cluster.transport, ("tcp", 0))
    routes = [[link // 2 for link in path if link != network.nowhere] for path in moved.paths.tolist()]
    links = [[network.links[link].id for link in path] for path in routes]
    return writer.host_rows(
        "paths",
        hosts,
        src_nic=writer.name_nics(moved.tx_nic),  # who probes knows the NICs, whoever else does
        dst=writer.name_hosts(far),
        dst_nic=writer.name_nics(moved.rx_nic),
        proto=proto,
        sport=moved.sport,
        dport=dport,
        links=pa.array(links, schema_of(TABLE_BY_NAME["paths"]).field("links").type),
        seen_ns=writer.timestamps(hosts, moved.send_first),
        confidence=1.0,
    )


_FIRST_PORT, _PROBE_PORTS, _TO_PORT = 33_000, 64, 4791
_SPREAD = 0.05  # of a round trip


class SimulatedProbes:
    """Answers what the hosts of a scenario would have measured; the same scenario and seed give the same probes."""

    def __init__(self, scenario: Scenario, network: Network, seed: int) -> None:
        self._scenario, self._network, self._seed = scenario, network, seed
        self._hops = [split_end(link.b)[0] for link in network.links]  # fabrics name the lower end first

    @cached_property
    def _link_faults(self) -> LinkFaults:
        """Worked out when the first probe is sent: most scenarios tell of none, large clusters have many links."""
        return LinkFaults(self._scenario, self._network)

    def at(self, second_ns: int, writer: RowWriter) -> pa.Table:
        """Return the probes of a second; none where the scenario tells of none."""
        if not self._scenario.telemetry.paths:
            return schema_of(TABLE_BY_NAME["probes"]).empty_table()
        second, nics = second_ns // NS_PER_S, self._scenario.cluster.nics_per_host
        src = np.arange(self._scenario.cluster.all_hosts * nics)
        hosts, every = src // nics, self._scenario.cluster.all_hosts
        dst = (hosts + 1 + second % (every - 1)) % every * nics + src % nics  # each second on the next host
        there, back = self._paths_between(src, dst, second), self._paths_between(dst, src, second)
        return writer.host_rows(
            "probes",
            hosts,
            ts_ns=writer.timestamps(hosts, np.full(len(src), float(second_ns))),
            src_nic=writer.name_nics(src),
            dst=writer.name_hosts(dst // nics),
            dst_nic=writer.name_nics(dst),
            proto="roce" if self._scenario.cluster.transport == "ib" else "tcp",
            sport=_FIRST_PORT + second % _PROBE_PORTS,
            dport=_TO_PORT,
            rtt_ns=self._round_trips(second_ns, there, back),
            hops=pa.array([self._hops_of(path) for path in there.tolist()]),
        )

    def _paths_between(self, src: Ints, dst: Ints, second: int) -> Ints:
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        keys = np.array([flow_key("probe", a, b, second % _PROBE_PORTS) for a, b in pairs], np.int64)
        return self._network.choose_paths(src, dst, keys)

    def _round_trips(self, second_ns: int, there: Ints, back: Ints) -> pa.Array:
        random = np.random.default_rng([self._seed, second_ns // NS_PER_S, 7])
        trouble = self._link_faults.at(float(second_ns), size=0)
        both = np.concatenate([there, back], axis=1)
        down = np.append(np.repeat(self._link_faults.down_at(second_ns / NS_PER_S), 2), False)
        arrives = np.prod(1 - np.where(down, 1.0, trouble.lost)[both], axis=1)
        hop_ns: Floats = trouble.condition.delay_ns[both].sum(axis=1) + 2e3 * self._scenario.cluster.hop_latency_us
        measured = (hop_ns * random.normal(1.0, _SPREAD, len(both)).clip(0.5)).astype(np.int64)
        return pa.array(measured, mask=random.random(len(both)) >= arrives)

    def _hops_of(self, path: list[int]) -> list[str]:
        """Return the switches on a way: leaf, or leaf, spine, leaf."""
        hops = [self._hops[link // 2] for link in path if link != self._network.nowhere]
        return [*hops[:2], hops[-1]] if len(hops) > 2 else hops[-1:]
