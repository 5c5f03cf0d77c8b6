"""The API's claims: how fast incidents and a delay matrix of 1,024 ranks come, at 50 clients and while ingest runs.

A real API process with a real ClickHouse server holds a job of 1,024 ranks among three others. Its 128 hosts send a
batch a second each, so that windows close, and matrices are built anew, all the time. The clients ask without pause,
which is more than people and dashboards do; one figure is of clients that ask twice a second.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Note, scratch
from benchmarks.fleet_head import Head
from benchmarks.fleet_sender import batch_head, read_answer
from benchmarks.store import EACH_SECOND, GPUS_PER_HOST, HOSTS, RANKS, host_name, ring_rows, ring_transfers
from lockstep.arrow import fill_rows
from lockstep.batches import encode_batch
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.state.database import open_control
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope, create_token
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import Impact, Incident, RuledOut, Verdict
from tests.testbed.services import cpu_seconds

JOB = "bench"
_ALL_JOBS = (JOB, "other1", "other2", "other3")
_CLIENTS = 50
_INCIDENTS = 1_000
_SECONDS_PER_INSERT = 10
_ROWS, _QUICK_ROWS = 10_000_000, 400_000
_API = "/api/v1"
_LIST = f"{_API}/incidents"
_JOBS = f"{_API}/jobs"
_MATRIX = f"{_API}/jobs/{JOB}/matrix"
_OTHERS = ("hosts", "agents", "incidents/i7", "incidents/i7/timeline", f"jobs/{JOB}/ranks")
_MIXED = (_LIST, _JOBS, *(f"{_API}/{path}" for path in _OTHERS), _MATRIX)


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


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return rates and delays of the API."""
    seconds = 2.0 if quick else 20.0
    with scratch() as directory:
        note("starting ClickHouse and the API")
        with Head(directory) as head:
            now_ns = SystemClock().now_ns()
            rows = fill(head.store, _QUICK_ROWS if quick else _ROWS, now_ns, note)
            readers, senders = _prepare(directory / "state", now_ns)
            with _sending(head.port, senders):
                note(f"{_CLIENTS} clients ask for {seconds:.0f} s each, while {HOSTS} hosts send")
                found = {"first": ask(head.port, readers[:1], [_MATRIX], 0.001)}
                used_s = cpu_seconds(head.gateway_pid)
                found["listed"] = ask(head.port, readers, [_LIST], seconds)
                used_s = cpu_seconds(head.gateway_pid) - used_s
                for name, paths in {"matrix": [_MATRIX], "mixed": _MIXED}.items():
                    found[name] = ask(head.port, readers, paths, seconds)
                for name, path in {"paced": _LIST, "jobs": _JOBS}.items():
                    found[name] = ask(head.port, readers, [path], seconds, pause_s=0.5)
    return _figures(rows, found, 1e3 * used_s / max(len(found["listed"].seconds), 1))


def _figures(rows: int, found: Mapping[str, Answers], cpu_ms: float) -> tuple[Figure, ...]:
    load = f"{rows:,} rows, load {os.getloadavg()[0]:.1f}"
    refused = sum(answers.refused for answers in found.values())
    p99 = {name: answers.percentile_ms(99) for name, answers in found.items()}
    first = found["first"].percentile_ms(50)
    return (
        Figure("incident list, 99th percentile", p99["listed"], "ms", 200, 50, False, load),
        Figure("incident list, requests", found["listed"].per_s, "1/s", reference="100 incidents each"),
        Figure("incident list, CPU of the API", cpu_ms, "ms each", reference="ingest included"),
        Figure("incident list, twice a second, 99th percentile", p99["paced"], "ms", None, 50, False),
        Figure("list of jobs, twice a second, 99th percentile", p99["jobs"], "ms"),
        Figure("matrix of 1,024 ranks, 99th percentile", p99["matrix"], "ms", 1_000, 250, False),
        Figure("matrix of 1,024 ranks, the first that is built", first, "ms", 1_000, 250, False),
        Figure("matrix of 1,024 ranks, requests", found["matrix"].per_s, "1/s"),
        Figure("all reads in turn, 99th percentile", p99["mixed"], "ms"),
        Figure("all reads in turn, requests", found["mixed"].per_s, "1/s"),
        Figure("requests that were refused", refused, "requests", 0, None, False),
    )


def _prepare(state: Path, now_ns: int) -> tuple[list[str], list[str]]:
    """Write incidents, and return a reader's token for each client and a collector's for each host."""
    with open_control(f"sqlite:///{state}/control.db") as control:
        save_incidents(control, [_incident(number, now_ns) for number in range(_INCIDENTS)], None)

        def make(scope: Scope, host: str | None = None) -> str:
            return create_token(control, scope=scope, host=host, name="bench", now_ns=now_ns)

        readers = [make("read") for _ in range(_CLIENTS)]
        return readers, [make("ingest", host_name(number)) for number in range(HOSTS)]


@contextmanager
def _sending(port: int, tokens: list[str]) -> Iterator[None]:
    """Let all hosts send, in a process of their own, for as long as the block runs."""
    hosts = get_context("spawn").Process(target=_send, args=(port, tokens), daemon=True)
    hosts.start()
    try:
        yield
    finally:
        hosts.kill()
        hosts.join()


def _incident(number: int, now_ns: int) -> Incident:
    """Return an incident as long as those of real faults are."""
    opened_ns = now_ns - number * 60 * NS_PER_S
    component = f"nic:{host_name(number % HOSTS)}/eth0"
    verdict = Verdict(
        id=f"v{number}",
        job=JOB,
        fault_class="comm_slow",
        component=component,
        side="tx",
        confidence=0.97,
        grade="isolate",
        since_ns=opened_ns,
        last_seen_ns=opened_ns,
        impact=Impact(step_time_ratio=1.4, ranks_waiting=1_023),
        reason=f"{component} sends at a quarter of the rate of its kind, and all ranks wait for it",
        evidence=tuple(
            {"kind": "wire", "ratio": 4.1, "what": f"{component} to n{peer}: 4.1 times"} for peer in range(8)
        ),
        ruled_out=tuple(
            RuledOut(component=f"link:leaf{n}--spine{n}", because="it is as fast as others") for n in range(4)
        ),
        coverage=1.0,
    )
    state = "open" if number == 0 else "closed"
    closed = {} if number == 0 else {"closed_ns": opened_ns, "closed_because": "it is as fast as its kind again"}
    return Incident(
        id=f"i{number}", job=JOB, state=state, opened_ns=opened_ns, updated_ns=opened_ns, verdict=verdict, **closed
    )


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


def fill(store: Store, rows: int, now_ns: int, note: Note) -> int:
    """Put about so many rows into the store, complete up to now, and return how many."""
    per_second: int = sum(table.num_rows for job in _ALL_JOBS for table in _second(job, range(RANKS), 0).values())
    seconds = max(rows // per_second, _SECONDS_PER_INSERT)
    jobs = f"{len(_ALL_JOBS)} jobs of {RANKS:,} ranks"
    note(f"filling the store with {seconds * per_second:,} rows: {seconds} s of {jobs}")
    end_ns = now_ns // NS_PER_S * NS_PER_S
    for job in _ALL_JOBS:
        store.insert(TABLE_BY_NAME["comms"], _comms(job, end_ns - seconds * NS_PER_S), token=f"comms/{job}")
    for first in range(0, seconds, _SECONDS_PER_INSERT):
        last = min(first + _SECONDS_PER_INSERT, seconds)
        times = [end_ns - (seconds - second) * NS_PER_S for second in range(first, last)]
        for name in ("transfer_stats", "op_stats"):
            parts = [_second(job, range(RANKS), ts_ns)[name] for job in _ALL_JOBS for ts_ns in times]
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
    sizes = {"name": "world", "nranks": RANKS, "nnodes": HOSTS, "world_rank": ranks, "gpu": ranks % GPUS_PER_HOST}
    return ring_rows("comms", ranks, job=job, plugin_version="bench", detail="steps", init_ns=init_ns, **sizes)


def _second(job: str, ranks: range, ts_ns: int) -> dict[str, pa.Table]:
    """Return a second of some ranks: statistics of their transfers, both ways, and of their operations."""
    those = np.arange(ranks.start, ranks.stop)
    sent = ring_transfers(job, those, ts_ns, _noise(len(those)))
    return {"transfer_stats": sent, "op_stats": _operations(job, those, ts_ns)}


def _operations(job: str, ranks: np.ndarray, ts_ns: int) -> pa.Table:
    lasted_ns = _noise(len(ranks))
    times = {"dur_sum_ns": lasted_ns, "dur_max_ns": lasted_ns // 10, "gap_sum_ns": lasted_ns // 2, "late_n": 0}
    return ring_rows("op_stats", ranks, job=job, ts_ns=ts_ns, **EACH_SECOND, **times)


@lru_cache
def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(42e6, 1e6, count).astype(np.int64)


def _send(port: int, tokens: list[str]) -> None:
    """Send until the process is ended, each host at its own moment of the second."""

    async def send() -> None:
        await asyncio.gather(*(_host(port, number, token, len(tokens)) for number, token in enumerate(tokens)))

    asyncio.run(send())


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
