"""The API's claims: how fast incidents and a delay matrix of 1,024 ranks come, at 50 clients and while ingest runs.

A real API process with a real ClickHouse server holds a job of 1,024 ranks among three others. Its 128 hosts send a
batch a second each, so that windows close, and matrices are built anew, all the time. The clients ask without pause,
which is more than people and dashboards do; one figure is of clients that ask twice a second.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.api_sender import HOSTS, JOB, Answers, ask, fill, host_name
from benchmarks.figures import Figure, Note
from benchmarks.fleet_head import Head
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.state.database import open_control
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope, create_token
from lockstep.verdict import Impact, Incident, RuledOut, Verdict
from tests.testbed.services import cpu_seconds

_CLIENTS = 50
_INCIDENTS = 1_000
_ROWS, _QUICK_ROWS = 10_000_000, 400_000
_API = "/api/v1"
_LIST = f"{_API}/incidents"
_JOBS = f"{_API}/jobs"
_MATRIX = f"{_API}/jobs/{JOB}/matrix"
_MIXED = (
    _LIST,
    _JOBS,
    f"{_API}/hosts",
    f"{_API}/agents",
    f"{_API}/incidents/i7",
    f"{_API}/incidents/i7/timeline",
    f"{_API}/jobs/{JOB}/ranks",
    _MATRIX,
)


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return rates and delays of the API."""
    seconds = 2.0 if quick else 20.0
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        directory = Path(folder)
        note("starting ClickHouse and the API")
        with Head(directory) as head:
            now_ns = SystemClock().now_ns()
            rows = fill(head.store, _QUICK_ROWS if quick else _ROWS, now_ns, note)
            readers, senders = _prepare(directory / "state", now_ns)
            with _sending(head.port, directory, senders):
                note(f"{_CLIENTS} clients ask for {seconds:.0f} s each, while {HOSTS} hosts send")
                first = ask(head.port, readers[:1], [_MATRIX], 0.001)
                used_s = cpu_seconds(head.gateway_pid)
                listed = ask(head.port, readers, [_LIST], seconds)
                used_s = cpu_seconds(head.gateway_pid) - used_s
                matrix, mixed = (ask(head.port, readers, paths, seconds) for paths in ([_MATRIX], _MIXED))
                paced, jobs = (ask(head.port, readers, [path], seconds, pause_s=0.5) for path in (_LIST, _JOBS))
    return _figures(rows, first, listed, matrix, mixed, paced, jobs, 1e3 * used_s / max(len(listed.seconds), 1))


def _figures(
    rows: int,
    first: Answers,
    listed: Answers,
    matrix: Answers,
    mixed: Answers,
    paced: Answers,
    jobs: Answers,
    cpu_ms: float,
) -> tuple[Figure, ...]:
    load = f"{rows:,} rows, load {os.getloadavg()[0]:.1f}"
    refused = sum(answers.refused for answers in (listed, matrix, mixed, paced, jobs))
    return (
        Figure("incident list, 99th percentile", listed.percentile_ms(99), "ms", 200, 50, False, load),
        Figure("incident list, requests", listed.per_s, "1/s", reference="100 incidents each"),
        Figure("incident list, CPU of the API", cpu_ms, "ms each", reference="ingest included"),
        Figure("incident list, twice a second, 99th percentile", paced.percentile_ms(99), "ms", None, 50, False),
        Figure("list of jobs, twice a second, 99th percentile", jobs.percentile_ms(99), "ms"),
        Figure("matrix of 1,024 ranks, 99th percentile", matrix.percentile_ms(99), "ms", 1_000, 250, False),
        Figure("matrix of 1,024 ranks, the first that is built", first.percentile_ms(50), "ms", 1_000, 250, False),
        Figure("matrix of 1,024 ranks, requests", matrix.per_s, "1/s"),
        Figure("all reads in turn, 99th percentile", mixed.percentile_ms(99), "ms"),
        Figure("all reads in turn, requests", mixed.per_s, "1/s"),
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
def _sending(port: int, directory: Path, tokens: list[str]) -> Iterator[None]:
    """Let all hosts send, in a process of their own, for as long as the block runs."""
    file = directory / "tokens"
    file.write_text("\n".join(tokens), encoding="ascii")
    command = [sys.executable, "-m", "benchmarks.api_sender", str(port), str(file)]
    with subprocess.Popen(command) as hosts:
        try:
            yield
        finally:
            hosts.kill()


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
