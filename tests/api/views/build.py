"""A small job in a store: four ranks on two hosts in a ring, of which one link is slow and one rank late."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from lockstep.records import (
    Agent,
    Comm,
    Event,
    GpuHealth,
    HostRecord,
    NicCounter,
    OpStat,
    Progress,
    Step,
    TransferStat,
)
from lockstep.store.store import Store
from lockstep.tables import TABLES
from lockstep.verdict import Incident
from tests.builders import SECOND, T0, make, rows
from tests.lockstep.state.build import incident as usual_incident

SECONDS = 10
NOW = T0 + SECONDS * SECOND
COMM = 7
SLOW_RANK, LATE_RANK = 2, 3
_numbers = count()


def put(store: Store, records: Iterable[HostRecord]) -> None:
    kinds: dict[type[HostRecord], list[HostRecord]] = {}
    for record in records:
        kinds.setdefault(type(record), []).append(record)
    for kind, same in kinds.items():
        table = next(table for table in TABLES if table.record is kind)
        store.insert(table, rows(*same), token=f"test/{next(_numbers)}")


def host_of(rank: int, job: str) -> str:
    return f"{job}-h{rank // 2}"


def load_job(store: Store, job: str, attempt: int = 0, start_ns: int = T0) -> None:
    """Put ten seconds of the job into the store, complete up to their end."""
    records: list[HostRecord] = [heartbeat(host_of(rank, job), start_ns + SECONDS * SECOND) for rank in (0, 2)]
    for rank in range(4):
        where = {"host": host_of(rank, job), "rank": rank, "job": job, "attempt": attempt, "comm": COMM}
        place = {"world_rank": rank, "gpu": rank % 2, "gpu_uuid": f"GPU-{job}-{rank}"}
        records.append(make(Comm, **where, **place, init_ns=start_ns, nccl_version="2.28.9"))
        for ts_ns in range(start_ns, start_ns + SECONDS * SECOND, SECOND):
            records += [_second(where, rank, ts_ns), _wire(where, rank, ts_ns)]
    put(store, records)


def _second(where: dict[str, object], rank: int, ts_ns: int) -> OpStat:
    """All ranks leave together: the late one was inside for 0.4 ms, the others for 1 ms."""
    return make(OpStat, **where, ts_ns=ts_ns, n=2, dur_sum_ns=800_000 if rank == LATE_RANK else 2_000_000)


def _wire(where: dict[str, object], rank: int, ts_ns: int) -> TransferStat:
    """A MiB takes 1 ms from each rank to the next, and 3 ms from the slow one."""
    wire_ns = 3_000_000 if rank == SLOW_RANK else 1_000_000
    return make(TransferStat, **where, peer=(rank + 1) % 4, ts_ns=ts_ns, bytes=1 << 20, wire_ns=wire_ns)


def heartbeat(host: str, ts_ns: int, *, lag_s: float = 0.0, dropped: int = 0, version: str = "1.0") -> Agent:
    watermark_ns = ts_ns - round(lag_s * SECOND)
    return make(Agent, host=host, ts_ns=ts_ns, version=version, watermark_ns=watermark_ns, dropped=dropped, cpu_ns=1)


def waiting(job: str, rank: int, ts_ns: int, *, state: str, since_ns: int | None) -> Progress:
    whom: dict[str, Any] = {"host": host_of(rank, job), "job": job, "attempt": 0, "comm": COMM, "rank": rank}
    counts = {"func": "AllReduce", "peer": -1, "enqueued": 11, "started": 11, "done": 10}
    unknown = dict.fromkeys(("open_bytes", "open_dtype", "open_algo", "head_peer", "head_channel"))
    return Progress(**whom, **counts, **unknown, ts_ns=ts_ns, oldest_open_ns=since_ns, head_state=state)  # type: ignore[arg-type]  # a literal in all tests


def step(
    job: str, number: int, rank: int, start_ns: int, length_s: float, *, attempt: int = 0, told: bool = True
) -> Step:
    whom: dict[str, Any] = {"host": host_of(rank, job), "job": job, "attempt": attempt, "world_rank": rank}
    end_ns = start_ns + round(length_s * SECOND)
    return Step(**whom, step=number, start_ns=start_ns, end_ns=end_ns, source="told" if told else "period")


def reading(host: str, gpu: int, uuid: str, ts_ns: int, temp_c: float = 60.0) -> GpuHealth:
    unknown: dict[str, Any] = dict.fromkeys(GpuHealth.__dataclass_fields__)
    known = {"sm_mhz": 1980, "throttle": "", "ecc_sbe": 0, "ecc_dbe": 0, "temp_c": temp_c}
    return GpuHealth(**(unknown | known | {"host": host, "ts_ns": ts_ns, "gpu": gpu, "gpu_uuid": uuid}))


def counters(host: str, nic: str, ts_ns: int, *, tx_bytes: int, rx_bytes: int = 0) -> NicCounter:
    return make(NicCounter, host=host, nic=nic, ts_ns=ts_ns, tx_bytes=tx_bytes, rx_bytes=rx_bytes, speed_mbps=100_000)


def happening(host: str, ts_ns: int, component: str, *, severity: str = "error", kind: str = "xid") -> Event:
    return make(Event, host=host, ts_ns=ts_ns, component=component, severity=severity, kind=kind, message="it broke")


def incident_on(
    component: str, identity: str, *, job: str = "train", opened_ns: int = T0, **fields: object
) -> Incident:
    usual = usual_incident(identity, job=job, opened_ns=opened_ns, updated_ns=opened_ns)
    seen = {"component": component, "since_ns": opened_ns, "last_seen_ns": opened_ns, **fields}
    return usual.model_copy(update={"verdict": usual.verdict.model_copy(update=seen)})
