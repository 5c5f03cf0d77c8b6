"""What simulated GPUs tell of themselves: clocks, heat, power, and how busy they look.

A GPU that is slow by defect looks healthy; only heat lowers the clock, and in a story that is a failure that comes
little by little. A kernel that waits for its peers counts as busy and draws little, as a spinning NCCL kernel does.
"""

import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.sim.network import Floats
from lockstep.sim.operations import Operation
from lockstep.sim.placement import Flags, Ints
from lockstep.sim.story import Story
from lockstep.sim.timeline import Turn, turns_now
from lockstep.sim.traffic import Tally
from lockstep.sim.wires import NEVER, Times
from lockstep.tables import TABLE_BY_NAME

PERIOD_S = 5
# Of an H100 SXM: highest and idle SM clock, power of computing, waiting and idle, where it begins to throttle.
MAX_MHZ, _IDLE_MHZ = 1980, 345
_COMPUTE_W, _WAITING_W, _IDLE_W = 650.0, 260.0, 110.0
_HOT_C = 92.0
HOT, IDLE = "hw_thermal_slowdown", "gpu_idle"  # as NVML names them
_ERRORS_PER_S = 20.0  # of a PCIe or NVLink connection that has lost its whole rate
_COOLING, _READING = 0x6EA7, 0x6EA8  # keep these draws apart from all others of the same seed


@dataclass(frozen=True)
class _Attempt:
    begin_ns: float
    gpu_of_rank: Ints  # counted over the hosts
    inside_since: Times  # by GPU: of an operation that never ends


class GpuReadings:
    """Follows what every GPU of the cluster does, spares too; counted over the hosts."""

    def __init__(self, story: Story, seed: int, hosts: list[str]) -> None:
        self._story, self._seed = story, seed
        self._per_host = story.cluster.gpus_per_host
        gpus = len(hosts) * self._per_host
        self._busy, self._ended = Tally(gpus), Tally(gpus)
        self._was_busy, self._had_ended = np.zeros(gpus), np.zeros(gpus)
        self._attempts: dict[int, _Attempt] = {}
        self._errors = {"pcie": np.zeros(gpus), "nvlink": np.zeros(gpus)}
        self._temp_c = np.random.default_rng([seed, _COOLING]).uniform(58.0, 68.0, gpus)
        index = np.tile(np.arange(self._per_host), len(hosts))
        names = np.repeat(hosts, self._per_host)
        self._names = {
            "host": pa.array(names),
            "gpu": index,
            "gpu_uuid": pa.array([gpu_uuid(host, gpu) for host, gpu in zip(names, index.tolist(), strict=True)]),
        }

    def note(self, operation: Operation) -> None:
        """Count how long ranks were in an operation, or that they never leave it."""
        attempt = self._attempts.get(operation.attempt) or self._begin(operation)
        gpus = attempt.gpu_of_rank[operation.rank]
        ended = operation.end < NEVER / 2
        spent = operation.end[ended] - operation.start[ended]
        self._busy.add(operation.end[ended], gpus[ended], spent)
        self._ended.add(operation.end[ended], gpus[ended], np.ones(len(spent)))
        inside = ~ended & (operation.start < NEVER / 2)
        np.minimum.at(attempt.inside_since, gpus[inside], operation.start[inside])

    def _begin(self, operation: Operation) -> "_Attempt":
        placement, gpus = operation.comms.placement, len(self._temp_c)
        gpu_of_rank = placement.host_of * self._per_host + placement.gpu_of
        self._attempts[operation.attempt] = _Attempt(
            float(operation.enqueue.min()), gpu_of_rank, np.full(gpus, NEVER)
        )
        return self._attempts[operation.attempt]

    def _attempt_at(self, second: int) -> "_Attempt":
        """Return the attempt that has begun last: operations may be noted ahead of the readings."""
        begun = [each for each in self._attempts.values() if each.begin_ns < second * NS_PER_S]
        return begun[-1] if begun else _Attempt(0.0, np.zeros(0, np.int64), np.full(len(self._temp_c), NEVER))

    def rows(self, second: int, ts_ns: int) -> pa.Table:
        """Return the readings at a second; to be asked every five."""
        turns = turns_now(self._story.timeline, second)
        attempt = self._attempt_at(second)
        has_process = np.isin(np.arange(len(self._temp_c)), attempt.gpu_of_rank)
        works, waits = self._activity(second, turns, attempt)
        speed, errors = self._speed(turns, second), self._count_errors(turns, second)
        is_hot, is_idle = speed < 1, ~works
        random = np.random.default_rng([self._seed, _READING, second])
        drawn = np.where(works, _WAITING_W * waits + _COMPUTE_W * (1 - waits) * speed, _IDLE_W)
        warm = np.where(works, self._temp_c, 34.0)
        # What is hot enough to throttle stays at that temperature, however far the clock has to fall.
        temp_c = np.where(is_hot, np.minimum(_HOT_C, warm + 4 * (1 - speed) * (_HOT_C - warm) + 15), warm)
        columns = {
            "sm_mhz": np.where(has_process, np.rint(MAX_MHZ * speed), _IDLE_MHZ).astype(np.uint32),
            "temp_c": np.rint(temp_c + random.normal(0.0, 0.5, len(temp_c))),
            "power_w": np.round(drawn + random.normal(0.0, 5.0, len(drawn)), 1),
            "throttle": pa.array(np.select([is_hot, is_idle], [HOT, IDLE], "").tolist()),
            "util": np.round(np.where(works, 1 - np.abs(random.normal(0.0, 0.01, len(drawn))), 0.0), 2),
        }
        counters = {"ecc_sbe": 0, "ecc_dbe": 0, **errors}
        fixed = {**self._names, "ts_ns": ts_ns, **counters}
        return fill_rows(TABLE_BY_NAME["gpu_health"], len(works), fixed | columns)

    def _activity(self, second: int, turns: tuple[Turn, ...], attempt: "_Attempt") -> tuple[Flags, Floats]:
        """Return which GPUs ran kernels since the last reading, and for what share these waited or moved data."""
        busy, ended = self._busy.at(second).copy(), self._ended.at(second).copy()
        share = np.clip((busy - self._was_busy) / (PERIOD_S * NS_PER_S), 0.0, 1.0)
        is_inside = attempt.inside_since < second * NS_PER_S
        works = (ended > self._had_ended) | is_inside
        self._was_busy, self._had_ended = busy, ended
        for turn in turns:
            if turn.effect == "stuck":
                works |= self._gpus_of(turn) & np.isin(np.arange(len(works)), attempt.gpu_of_rank)
            elif turn.effect == "gone":
                works &= ~self._gpus_of(turn)
            elif turn.effect == "killed":
                works[attempt.gpu_of_rank[int(turn.name) :][:1]] = False
        return works, np.where(is_inside, 1.0, share)

    def _speed(self, turns: tuple[Turn, ...], now_s: float) -> Floats:
        """Return what heat leaves of the clocks."""
        speed = np.ones(len(self._temp_c))
        for turn in turns:
            if turn.effect == "rate" and turn.kind == "gpu" and turn.over_s > 0:
                speed[self._gpus_of(turn)] *= 1 - (1 - (turn.amount or 0.0)) * turn.level(now_s)
        return speed

    def _count_errors(self, turns: tuple[Turn, ...], now_s: float) -> dict[str, np.ndarray]:
        for turn in turns:
            if turn.effect == "rate" and turn.kind in self._errors:
                lack = (1 - (turn.amount or 0.0)) * turn.level(now_s)
                self._errors[turn.kind][self._gpus_of(turn)] += _ERRORS_PER_S * PERIOD_S * lack
        names = {"pcie_replays": "pcie", "nvlink_errors": "nvlink"}
        return {column: self._errors[kind].astype(np.uint64) for column, kind in names.items()}

    def _gpus_of(self, turn: Turn) -> Flags:
        """Return the GPUs of a host, or one of them."""
        gpus = np.arange(len(self._temp_c))
        host, _, gpu = turn.name.partition("/")
        mine: Flags = gpus // self._per_host == int(host.removeprefix("h"))
        return mine & (gpus % self._per_host == int(gpu)) if gpu else mine


def gpu_uuid(host: str, gpu: int) -> str:
    """Return the UUID of a simulated GPU, the same each time."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{gpu}')}"
