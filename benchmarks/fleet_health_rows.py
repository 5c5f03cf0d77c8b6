"""What an agent says about its host and itself each second: heartbeat, GPUs and NICs."""

import numpy as np
import pyarrow as pa

from benchmarks.fleet_layout import GPUS_PER_HOST, HostPlan
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
