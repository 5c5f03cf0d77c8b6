"""The hosts of the API's benchmark: every second each sends a batch of the job to the gateway, until it is ended.

`python -m benchmarks.api_sender PORT FILE`, where the file has a token a line, in the order of hosts.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figures import Note
from benchmarks.fleet_sender import batch_head, read_answer
from lockstep.arrow import fill_rows
from lockstep.batches import encode_batch
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME


@dataclass
class Answers:
    """How long answers took, and how many were not what was asked for."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    elapsed_s: float = 0.0

    def percentile_ms(self, share: float) -> float:
        return float(np.percentile(self.seconds, share)) * 1e3 if self.seconds else float("inf")

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.elapsed_s if self.elapsed_s else 0.0


def ask(port: int, tokens: Sequence[str], paths: Sequence[str], seconds: float, pause_s: float = 0.0) -> Answers:
    """Return what as many clients as there are tokens saw, each asking for the paths in turn."""
    return asyncio.run(_ask(port, tokens, paths, seconds, pause_s))


async def _ask(port: int, tokens: Sequence[str], paths: Sequence[str], seconds: float, pause_s: float) -> Answers:
    answers, begin = Answers(), time.perf_counter()
    orders = [[*paths[first % len(paths) :], *paths[: first % len(paths)]] for first in range(len(tokens))]
    clients = zip(tokens, orders, strict=True)
    await asyncio.gather(*(_client(port, *client, begin + seconds, pause_s, answers) for client in clients))
    answers.elapsed_s = time.perf_counter() - begin
    return answers


async def _client(
    port: int, token: str, paths: Sequence[str], until: float, pause_s: float, answers: Answers
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    head = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    number = 0
    try:
        while not number or time.perf_counter() < until:
            begin = time.perf_counter()
            writer.write(f"GET {paths[number % len(paths)]} {head}".encode())
            status, _, _ = await read_answer(reader)
            answers.seconds.append(time.perf_counter() - begin)
            answers.refused += status != 200
            number += 1
            if pause_s:
                await asyncio.sleep(max(begin + pause_s - time.perf_counter(), 0.0))
    finally:
        writer.close()


RANKS, GPUS_PER_HOST = 1_024, 8
HOSTS = RANKS // GPUS_PER_HOST
JOB = "bench"
_JOBS = (JOB, "other1", "other2", "other3")
_SECONDS_PER_INSERT = 10
_COMM = 1


def host_name(number: int) -> str:
    return f"n{number}"


def fill(store: Store, rows: int, now_ns: int, note: Note) -> int:
    """Put about so many rows into the store, complete up to now, and return how many."""
    per_second: int = sum(table.num_rows for job in _JOBS for table in _second(job, range(RANKS), 0).values())
    seconds = max(rows // per_second, _SECONDS_PER_INSERT)
    note(f"filling the store with {seconds * per_second:,} rows: {seconds} s of {len(_JOBS)} jobs of {RANKS:,} ranks")
    end_ns = now_ns // NS_PER_S * NS_PER_S
    for job in _JOBS:
        store.insert(TABLE_BY_NAME["comms"], _comms(job, end_ns - seconds * NS_PER_S), token=f"comms/{job}")
    for first in range(0, seconds, _SECONDS_PER_INSERT):
        last = min(first + _SECONDS_PER_INSERT, seconds)
        times = [end_ns - (seconds - second) * NS_PER_S for second in range(first, last)]
        for name in ("transfer_stats", "op_stats"):
            parts = [_second(job, range(RANKS), ts_ns)[name] for job in _JOBS for ts_ns in times]
            store.insert(TABLE_BY_NAME[name], pa.concat_tables(parts), token=f"{name}/{times[0]}")
        beats = [heartbeats(list(range(HOSTS)), ts_ns + NS_PER_S) for ts_ns in times]
        store.insert(TABLE_BY_NAME["agents"], pa.concat_tables(beats), token=f"agents/{times[0]}")
    return seconds * per_second


def host_second(host: int, ts_ns: int) -> dict[str, pa.Table]:
    """Return what one host sends of a second of the job, with its heartbeat."""
    ranks = range(host * GPUS_PER_HOST, (host + 1) * GPUS_PER_HOST)
    return {**_second(JOB, ranks, ts_ns), "agents": heartbeats([host], ts_ns + NS_PER_S)}


def heartbeats(hosts: list[int], ts_ns: int) -> pa.Table:
    columns = {
        "host": pa.array([host_name(host) for host in hosts]),
        "ts_ns": ts_ns,
        "version": "bench",
        "watermark_ns": ts_ns,
        "dropped": 0,
        "spool_bytes": 0,
        "cpu_ns": 0,
    }
    return fill_rows(TABLE_BY_NAME["agents"], len(hosts), columns)


def _comms(job: str, init_ns: int) -> pa.Table:
    ranks = np.arange(RANKS)
    return _rows(
        "comms",
        job,
        ranks,
        name="world",
        rank=ranks,
        nranks=RANKS,
        nnodes=HOSTS,
        world_rank=ranks,
        gpu=ranks % GPUS_PER_HOST,
        plugin_version="bench",
        detail="steps",
        init_ns=init_ns,
    )


def _second(job: str, ranks: range, ts_ns: int) -> dict[str, pa.Table]:
    """Return a second of some ranks: statistics of their transfers, both ways, and of their operations."""
    return {
        "transfer_stats": pa.concat_tables(list(_transfers(job, np.arange(ranks.start, ranks.stop), ts_ns))),
        "op_stats": _operations(job, np.arange(ranks.start, ranks.stop), ts_ns),
    }


def _transfers(job: str, ranks: np.ndarray, ts_ns: int) -> Iterator[pa.Table]:
    wire_ns = _noise(len(ranks))
    for channel, hop in ((0, 1), (1, 9)):
        for direction, sign in (("send", 1), ("recv", -1)):
            is_send = direction == "send"
            yield _rows(
                "transfer_stats",
                job,
                ranks,
                func="AllReduce",
                size_class=26,
                rank=ranks,
                channel=channel,
                peer=(ranks + sign * hop) % RANKS,
                direction=direction,
                ts_ns=ts_ns,
                transport="ib",
                nic="eth0",
                n=20,
                bytes=20 << 26,
                gpu_wait_ns=wire_ns // 3,
                peer_wait_ns=wire_ns // 5,
                wire_ns=wire_ns if is_send else None,
                wire_max_ns=wire_ns // 20 if is_send else None,
            )


def _operations(job: str, ranks: np.ndarray, ts_ns: int) -> pa.Table:
    lasted_ns = _noise(len(ranks))
    return _rows(
        "op_stats",
        job,
        ranks,
        func="AllReduce",
        size_class=26,
        rank=ranks,
        ts_ns=ts_ns,
        n=20,
        bytes=20 << 26,
        dur_sum_ns=lasted_ns,
        dur_max_ns=lasted_ns // 10,
        gap_sum_ns=lasted_ns // 2,
        late_n=0,
    )


@lru_cache
def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(42e6, 1e6, count).astype(np.int64)


def _rows(table: str, job: str, ranks: np.ndarray, **columns: object) -> pa.Table:
    hosts = pa.array([host_name(rank // GPUS_PER_HOST) for rank in ranks.tolist()])
    known = {"host": hosts, "job": job, "attempt": 0, "comm": _COMM}
    return fill_rows(TABLE_BY_NAME[table], len(ranks), known | columns)


async def send(port: int, tokens: list[str]) -> None:
    """Send until the process is ended, each host at its own moment of the second."""
    await asyncio.gather(*(_host(port, number, token, len(tokens)) for number, token in enumerate(tokens)))


async def _host(port: int, number: int, token: str, hosts: int) -> None:
    sent = 0
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                await asyncio.sleep(1.0 + number / hosts - time.time() % 1.0)
                sent += 1
                second_ns = (time.time_ns() // NS_PER_S - 1) * NS_PER_S
                body = encode_batch(host_second(number, second_ns))
                writer.write(batch_head(port, token, host_name(number), "bench", sent, body) + body)
                if (await read_answer(reader))[0] != 200:
                    sys.stderr.write(f"the batch of {host_name(number)} was refused\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the server ends connections that are idle for long; the next batch opens another


if __name__ == "__main__":
    asyncio.run(send(int(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="ascii").split()))
