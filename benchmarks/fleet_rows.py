"""What the agent of one host sends in each second: rows of every table a busy host fills, with believable values.

Numbers vary as they do on real hosts (each link has its own speed and jitters around it, counters grow by what was
sent), because constants would take no room on disk and the figure of bytes an hour would flatter us.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from benchmarks.fleet_head import GPUS_PER_HOST, Group, HostPlan
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

NICS = pa.array([f"mlx5_{gpu}" for gpu in range(GPUS_PER_HOST)])
_COUNTERS = (
    "rx_vport_rdma_unicast_packets",
    "tx_vport_rdma_unicast_packets",
    "rx_prio3_pause",
    "tx_prio3_pause",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "out_of_sequence",
    "local_ack_timeout_err",
    "packet_seq_err",
)


class HostHealth:
    """Rows that do not depend on what jobs do."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan

    def agents(self, times: Ints, random: np.random.Generator) -> pa.Table:
        columns = {
            "ts_ns": times,
            "version": "1.0.0",
            "watermark_ns": times - random.integers(1_000_000, 400_000_000, len(times)),
            "dropped": 0,
            "spool_bytes": 0,
            "cpu_ns": times % (3600 * NS_PER_S) // 100 + random.integers(0, 1_000_000, len(times)),
            "plugin_cost_ns": times % (3600 * NS_PER_S) // 1000 + random.integers(0, 100_000, len(times)),
        }
        return fill_rows(TABLE_BY_NAME["agents"], len(times), {"host": self._plan.name} | columns)

    def gpu_health(self, times: Ints, random: np.random.Generator) -> pa.Table:
        many = len(times) * GPUS_PER_HOST
        gpus = np.tile(np.arange(GPUS_PER_HOST), len(times))
        names = pa.array([f"GPU-{self._plan.number:08x}-a1b2-4c3d-8e9f-{gpu:012x}" for gpu in range(GPUS_PER_HOST)])
        columns = {
            "ts_ns": np.repeat(times, GPUS_PER_HOST) + random.integers(0, 20_000_000, many),
            "gpu": gpus,
            "gpu_uuid": names.take(pa.array(gpus)),
            "sm_mhz": 1980 - 15 * random.integers(0, 12, many),
            "temp_c": np.round(random.normal(62, 3, many)),
            "power_w": np.round(random.normal(640, 35, many), 1),
            "throttle": "",
            "ecc_sbe": 0,
            "ecc_dbe": 0,
            "nvlink_errors": 0,
            "pcie_replays": 0,
            "util": np.round(random.uniform(0.9, 1.0, many), 2),
        }
        return fill_rows(TABLE_BY_NAME["gpu_health"], many, {"host": self._plan.name} | columns)

    def nic_counters(self, times: Ints, random: np.random.Generator) -> pa.Table:
        many = len(times) * GPUS_PER_HOST
        nics = np.tile(np.arange(GPUS_PER_HOST), len(times))
        grown = np.repeat(times // NS_PER_S % 86_400, GPUS_PER_HOST)
        sent, received = (grown * 14_000_000_000 + random.integers(0, 9_000_000_000, many) for _ in range(2))
        columns = {
            "ts_ns": np.repeat(times, GPUS_PER_HOST) + random.integers(0, 5_000_000, many),
            "nic": NICS.take(pa.array(nics)),
            "up": True,
            "speed_mbps": 400_000,
            "rx_bytes": received,
            "tx_bytes": sent,
            "rx_errors": 0,
            "tx_errors": 0,
            "rx_drops": 0,
            "tx_drops": 0,
            "retrans": grown // 600 + nics,
            "extra": _counter_maps(sent // 4096, received // 4096, random),
        }
        return fill_rows(TABLE_BY_NAME["nic_counters"], many, {"host": self._plan.name} | columns)


def _counter_maps(sent: Ints, received: Ints, random: np.random.Generator) -> pa.Array:
    values = random.integers(0, 3, (len(sent), len(_COUNTERS))) + sent[:, None] // 100_000
    values[:, 0], values[:, 1] = received, sent
    offsets = np.arange(len(sent) + 1, dtype=np.int32) * len(_COUNTERS)
    names = pa.array(list(_COUNTERS) * len(sent))
    return pa.MapArray.from_arrays(offsets, names, pa.array(values.ravel(), pa.uint64()))


_SEED = 4

# kind of group: functions, size classes of each, operations a second of each, channels
_TRAFFIC: dict[str, tuple[tuple[str, ...], tuple[int, ...], float, int]] = {
    "tp": (("AllGather", "ReduceScatter"), (24,), 180.0, 8),
    "dp": (("AllGather", "ReduceScatter"), (26, 27), 6.0, 4),
    "pp": (("Send", "Recv"), (23,), 24.0, 2),
    "ep": (("Send", "Recv"), (19,), 48.0, 1),
}
_SAMPLED_OPERATIONS = 24  # whole rows that the budget of a host leaves room for, in each second
_SAMPLED_TRANSFERS = 32
_WIRE_NS_PER_BYTE = 1 / 45  # 45 GB/s: a 400 Gb/s NIC


@dataclass(frozen=True)
class Line:
    """One row of each second's statistics: what stays the same from second to second."""

    group: Group
    func: str
    size_class: int
    rate: float  # operations a second
    peer: int = -1
    channel: int = 0
    direction: str = "send"


class HostRows:
    """The rows of one host, second by second; the same seconds give the same rows."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        self._speed = np.random.default_rng([_SEED, plan.number]).normal(1.0, 0.04, 4096)  # of each link, for good

    def tables(self, first_second: int, seconds: int) -> dict[str, pa.Table]:
        """Return the rows of all seconds by table, second after second, each as long as the others."""
        times = (first_second + np.arange(seconds)) * NS_PER_S
        random = np.random.default_rng([_SEED, self._plan.number, first_second])
        health = HostHealth(self._plan)
        return {
            "agents": health.agents(times, random),
            "collectives": self._collectives(times, random),
            "gpu_health": health.gpu_health(times, random),
            "nic_counters": health.nic_counters(times, random),
            "op_stats": self._op_stats(times, random),
            "progress": self._progress(times, random),
            "transfer_stats": self._transfer_stats(times, random),
            "transfers": self._transfers(times, random),
        }

    @cached_property
    def operations(self) -> list[Line]:
        return [
            Line(group, func, size_class, rate)
            for group in self._plan.groups
            for funcs, sizes, rate, _ in [_TRAFFIC[group.kind]]
            for func in funcs
            for size_class in sizes
        ]

    @cached_property
    def transfers(self) -> list[Line]:
        return [
            Line(group, func, size_class, rate, peer, channel, direction)
            for group in self._plan.groups
            for funcs, sizes, rate, channels in [_TRAFFIC[group.kind]]
            for func in funcs
            for size_class in sizes
            for channel in range(channels)
            for direction, peers in (("send", group.next_peers), ("recv", group.previous_peers))
            if func not in ("Send", "Recv") or func.lower() == direction
            for peer in peers
        ]

    @cached_property
    def heads(self) -> list[Line]:
        """What `progress` looks at. Of an all-to-all only the receiving side: both would break a host's budget."""
        return [
            Line(group, func, sizes[0], rate * len(sizes), peer)
            for group in self._plan.groups
            for funcs, sizes, rate, _ in [_TRAFFIC[group.kind]]
            for func in funcs
            if (group.kind, func) != ("ep", "Send")
            for peer in (group.previous_peers if func in ("Send", "Recv") else (-1,))
        ]

    def _op_stats(self, times: Ints, random: np.random.Generator) -> pa.Table:
        lines, many = self.operations, len(times) * len(self.operations)
        n, size = self._finished(lines, len(times), random), _sizes(lines, len(times))
        duration = size * _WIRE_NS_PER_BYTE * random.gamma(20, 1 / 20, many)
        return self._rows(
            "op_stats",
            lines,
            times,
            n=n,
            bytes=n * size,
            dur_sum_ns=(n * duration).astype(np.int64),
            dur_max_ns=(duration * random.gamma(30, 1.4 / 30, many)).astype(np.int64),
            gap_sum_ns=random.gamma(4, 5e7, many).astype(np.int64),
            late_n=random.binomial(1, 0.01, many),
        )

    def _transfer_stats(self, times: Ints, random: np.random.Generator) -> pa.Table:
        lines = self.transfers
        many = len(times) * len(lines)
        n = self._finished(lines, len(times), random)
        size = _sizes(lines, len(times)) // _tiled([_TRAFFIC[line.group.kind][3] for line in lines], len(times))
        speed = np.tile(np.resize(self._speed, len(lines)), len(times))
        wire = n * size * _WIRE_NS_PER_BYTE * speed * random.gamma(400, 1 / 400, many)
        is_send = pa.array(_tiled([line.direction == "send" for line in lines], len(times)) == 1)
        longest = wire / np.maximum(n, 1) * random.gamma(30, 1.3 / 30, many)
        return self._rows(
            "transfer_stats",
            lines,
            times,
            n=n,
            bytes=n * size,
            gpu_wait_ns=(wire * random.gamma(5, 0.06, many)).astype(np.int64),
            peer_wait_ns=(wire * random.gamma(5, 0.04, many)).astype(np.int64),
            wire_ns=_where(is_send, wire),
            wire_max_ns=_where(is_send, longest),
        )

    def _progress(self, times: Ints, random: np.random.Generator) -> pa.Table:
        lines, seconds = self.heads, times // NS_PER_S
        rate = np.array([line.rate for line in lines])
        since = seconds - seconds[0] // 3600 * 3600  # the job began with the hour
        done = (
            (since[:, None] * rate + random.normal(0, 2, (len(times), len(lines)))).clip(0).astype(np.int64).ravel()
        )
        is_open = pa.array(random.random(len(done)) < 0.7)
        looked = times[:, None] + NS_PER_S // 2 + random.normal(0, 5e5, (len(times), len(lines))).astype(np.int64)
        states = pa.array(["idle", "gpu_wait", "peer_wait", "wire", "recv_wait"])
        return self._rows(
            "progress",
            lines,
            times,
            ts_ns=looked.ravel(),
            enqueued=done + random.integers(1, 4, len(done)),
            started=done + 1,
            done=done,
            open_bytes=_where(is_open, _sizes(lines, len(times))),
            open_dtype="ncclBfloat16",
            open_algo="RING",
            oldest_open_ns=_where(is_open, looked.ravel() - random.exponential(4e6, len(done))),
            head_state=states.take(pa.array(random.integers(0, len(states), len(done)))),
        )

    def _collectives(self, times: Ints, random: np.random.Generator) -> pa.Table:
        lines = _spread(self.operations, _SAMPLED_OPERATIONS)
        begin = self._timestamps(lines, times, random)
        enqueue = begin - random.exponential(2e5, len(begin)).astype(np.int64)
        duration = _sizes(lines, len(times)) * _WIRE_NS_PER_BYTE * random.gamma(20, 1 / 20, len(begin))
        return self._rows(
            "collectives",
            lines,
            times,
            seq=_numbers(lines, times),
            seq_valid=True,
            captured=False,
            algo="RING",
            proto="SIMPLE",
            dtype="ncclBfloat16",
            bytes=_sizes(lines, len(times)),
            channels=_tiled([_TRAFFIC[line.group.kind][3] for line in lines], len(times)),
            enqueue_ns=enqueue,
            start_ns=begin,
            end_ns=begin + duration.astype(np.int64),
            clock="gpu",
        )

    def _transfers(self, times: Ints, random: np.random.Generator) -> pa.Table:
        lines = _spread(self.transfers, _SAMPLED_TRANSFERS)
        first = self._timestamps(lines, times, random)
        size = _sizes(lines, len(times))
        wire = size * _WIRE_NS_PER_BYTE * random.gamma(60, 1 / 60, len(first))
        is_send = pa.array(_tiled([line.direction == "send" for line in lines], len(times)) == 1)
        return self._rows(
            "transfers",
            lines,
            times,
            seq=_numbers(lines, times),
            sport=_tiled([49152 + hash((line.peer, line.channel)) % 16384 for line in lines], len(times)),
            bytes=size,
            steps=np.maximum(size >> 19, 1),
            detail="steps",
            gpu_wait_ns=(wire * random.gamma(5, 0.06, len(first))).astype(np.int64),
            peer_wait_ns=(wire * random.gamma(5, 0.04, len(first))).astype(np.int64),
            wire_ns=_where(is_send, wire),
            flush_ns=_where(pa.array(~is_send.to_numpy(False)), random.exponential(3e4, len(first))),
            first_ns=first,
            last_ns=first + (1.5 * wire).astype(np.int64),
        )

    def _rows(self, name: str, lines: list[Line], times: Ints, **columns: object) -> pa.Table:
        many = len(times)
        gpus = pa.array(_tiled([line.group.gpu for line in lines], many))
        where = {
            "host": self._plan.name,
            "job": self._plan.job,
            "attempt": 0,
            "replay": 0,
            "epoch": 0,
            "comm": np.tile(np.array([line.group.comm for line in lines], np.uint64), many),
            "func": _texts([line.func for line in lines], many),
            "size_class": _tiled([line.size_class for line in lines], many),
            "rank": _tiled([line.group.rank for line in lines], many),
            "channel": _tiled([line.channel for line in lines], many),
            "peer": _tiled([line.peer for line in lines], many),
            "direction": _texts([line.direction for line in lines], many),
            "transport": "ib",
            "nic": NICS.take(gpus),
            "ts_ns": np.repeat(times, len(lines)),
        }
        return fill_rows(TABLE_BY_NAME[name], many * len(lines), where | columns)

    def _finished(self, lines: list[Line], seconds: int, random: np.random.Generator) -> Ints:
        return random.poisson(np.tile([line.rate for line in lines], seconds)).astype(np.int64)

    def _timestamps(self, lines: list[Line], times: Ints, random: np.random.Generator) -> Ints:
        """Return when sampled operations began: anywhere in their second, in no order."""
        return np.repeat(times, len(lines)) + random.integers(0, NS_PER_S, len(times) * len(lines))


def _tiled(values: list[int] | list[bool], seconds: int) -> Ints:
    return np.tile(np.array(values, np.int64), seconds)


def _texts(values: list[str], seconds: int) -> pa.Array:
    return pa.concat_arrays([pa.array(values, pa.string())] * seconds)


def _sizes(lines: list[Line], seconds: int) -> Ints:
    """Return bytes per operation: what a model exchanges is the same each time, and no power of two."""
    return _tiled([(1 << line.size_class) * (17 + line.group.rank % 3) // 16 for line in lines], seconds)


def _numbers(lines: list[Line], times: Ints) -> Ints:
    since = times // NS_PER_S % 3600
    numbers: Ints = since[:, None] * np.array([int(line.rate) for line in lines]) + np.arange(len(lines))
    return numbers.ravel()


def _spread(lines: list[Line], wanted: int) -> list[Line]:
    """Return at most so many of them, evenly taken."""
    return lines[:: max(1, -(-len(lines) // wanted))]


def _where(is_known: pa.Array, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | Ints) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=~is_known.to_numpy(zero_copy_only=False))
