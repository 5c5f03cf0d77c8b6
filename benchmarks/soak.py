"""Hours of use: whether a head node that is asked without a pause keeps its memory, files and threads.

A real `lockstep up --demo`: embedded store, collectors that send every second, analyzer, planner, alerts. Clients
walk over every list of the API and every page that the first one links to; one listens to the stream and begins again
now and then. Memory is the median of each minute, as is what there is at the end; what it grows by is the slope over
the second half, when all is warm: lists look back an hour, so that reads grow for the first one.
"""

import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import httpx
import numpy as np
from scipy.stats import theilslopes

from benchmarks.figures import Figure, Note, scratch
from tests.testbed.services import Service, cpu_seconds, free_port, resident_bytes

_CLIENTS, _REQUESTS_PER_S = 4, 20.0  # of all clients together
_QUICK_S, _HOUR_S, _DAY_S = 15.0, 3_600.0, 86_400.0
_MINUTE_S = 60.0
_LISTEN_S = 30.0  # a listener that stays away this long begins again
_MOST_ADDRESSES = 80
_MB = 1 << 20
_LINK = re.compile(r'href="(/[^"#]*)"')
_STREAM = "/api/v1/incidents/stream"


@dataclass
class Tally:
    """What clients saw; lists only grow, so that they may write without a lock."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the head node has in use at one moment."""

    at_s: float
    memory_mb: float
    files: int
    threads: int


def measure(quick: bool, note: Note, full: bool = False) -> tuple[Figure, ...]:
    """Return memory, files and threads of a head node over 15 s, two hours, or a day."""
    duration_s = _QUICK_S if quick else _DAY_S if full else 2 * _HOUR_S
    with scratch() as folder, _head(folder) as (head, url):
        addresses = find_addresses(url)
        note(f"{_CLIENTS} clients ask for {len(addresses)} addresses in turn, for {duration_s / 60:.0f} min")
        began_s, began_cpu_s, tally = time.monotonic(), cpu_seconds(head.pid), Tally()
        with _clients(url, addresses, tally):
            samples = list(_watch(head.pid, duration_s, note))
        elapsed_s = time.monotonic() - began_s
        share = 100 * (cpu_seconds(head.pid) - began_cpu_s) / elapsed_s
    return _figures(samples, tally, elapsed_s, share)


def find_addresses(url: str) -> list[str]:
    """Return every list of the API and every page that links lead to from the first one."""
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        schema = client.get("/openapi.json").raise_for_status().json()
        lists = [path for path, methods in schema["paths"].items() if "get" in methods and "{" not in path]
        found = dict.fromkeys(["/", *(path for path in lists if path != _STREAM)])
        for address in iter(list(found)):
            if not address.startswith("/api/"):
                found |= dict.fromkeys(_LINK.findall(client.get(address).text))
    return [address for address in found if not address.startswith("/static/")][:_MOST_ADDRESSES]


@contextmanager
def _head(folder: Path) -> Iterator[tuple[Service, str]]:
    address = f"127.0.0.1:{free_port()}"
    settings = {"LOCKSTEP_STATE_DIR": str(folder / "state"), "LOCKSTEP_API_LISTEN": address}
    url = f"http://{address}"
    with Service(("up", "--demo"), settings, f"{url}/healthz", folder / "head.log") as head:
        yield head, url


@contextmanager
def _clients(url: str, addresses: Sequence[str], tally: Tally) -> Iterator[None]:
    stop = threading.Event()
    threads = [
        threading.Thread(target=_ask, args=(url, [*addresses[number:], *addresses[:number]], tally, stop))
        for number in range(_CLIENTS)
    ]
    threads.append(threading.Thread(target=_listen, args=(url, tally, stop)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _ask(url: str, addresses: Sequence[str], tally: Tally, stop: threading.Event) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for address in cycle(addresses):
            if stop.wait(_CLIENTS / _REQUESTS_PER_S):
                return
            began_s = time.monotonic()
            try:
                status = client.get(address).status_code
            except httpx.TransportError as error:
                tally.failures.append(f"{address}: {type(error).__name__}")
                continue
            tally.seconds.append(time.monotonic() - began_s)
            if status >= 500 or status == 429:
                tally.failures.append(f"{address}: {status}")


def _listen(url: str, tally: Tally, stop: threading.Event) -> None:
    """Follow the stream of incidents, and begin again from the last event now and then."""
    last: dict[str, str] = {}
    while not stop.is_set():
        until_s = time.monotonic() + _LISTEN_S
        with httpx.stream("GET", url + _STREAM, headers=last, timeout=_LISTEN_S, trust_env=False) as answer:
            for line in answer.iter_lines():
                if line.startswith("id:"):
                    last = {"Last-Event-ID": line[3:].strip()}
                    tally.events.append(line)
                if stop.is_set() or time.monotonic() > until_s:
                    break


def _watch(pid: int, duration_s: float, note: Note) -> Iterator[Sample]:
    began_s = time.monotonic()
    while (at_s := time.monotonic() - began_s) < duration_s:
        process = Path(f"/proc/{pid}")
        files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
        yield (sample := Sample(at_s, resident_bytes(pid) / _MB, files, threads))
        if int(at_s) % 600 == 0:
            note(f"{at_s / 60:.0f} min: {sample.memory_mb:.0f} MB, {files} files, {threads} threads")
        time.sleep(1)


def growth_mb_per_hour(samples: Sequence[Sample]) -> float:
    """Return what memory grows by in the second half: the median slope between its minutes."""
    half_s = samples[-1].at_s / 2
    minutes: dict[int, list[float]] = {}
    for sample in samples:
        if sample.at_s >= half_s:
            minutes.setdefault(int(sample.at_s // _MINUTE_S), []).append(sample.memory_mb)
    if len(minutes) < 2:
        return 0.0  # too short to say
    medians = [float(np.median(minutes[minute])) for minute in sorted(minutes)]
    return float(theilslopes(medians, sorted(minutes)).slope) * 60


def median_of(samples: Sequence[Sample], last_s: float = math.inf) -> Sample:
    """Return what is usual in the last seconds: a merge at one moment has fifty files open for a moment."""
    end_s = samples[-1].at_s
    late = [sample for sample in samples if sample.at_s > end_s - last_s]
    files, threads = (int(np.median([getattr(one, name) for one in late])) for name in ("files", "threads"))
    return Sample(end_s, float(np.median([one.memory_mb for one in late])), files, threads)


def _figures(samples: Sequence[Sample], tally: Tally, elapsed_s: float, share: float) -> tuple[Figure, ...]:
    last, p99_ms = median_of(samples, _MINUTE_S), float(np.percentile(tally.seconds, 99)) * 1e3
    growth = 100 * growth_mb_per_hour(samples) / last.memory_mb
    usual = median_of(samples)
    grown_files, grown_threads = last.files - usual.files, last.threads - usual.threads
    failed = f"first: {tally.failures[0]}" if tally.failures else f"of {len(tally.seconds):,}"
    most, pace = max(sample.memory_mb for sample in samples), len(tally.seconds) / elapsed_s
    return (
        Figure("length", elapsed_s / _HOUR_S, "h", 1, 24),
        Figure("memory at the end", last.memory_mb, "MB", reference=f"{most:,.0f} at most"),
        Figure("growth in the second half", growth, "% an hour", 5, 1, False),
        Figure("files more than usual at the end", grown_files, "files", 20, 5, False, f"{last.files} open"),
        Figure("threads more than usual at the end", grown_threads, "threads", 5, 0, False, f"{last.threads} run"),
        Figure("answers that failed", len(tally.failures), "answers", 0, None, False, failed),
        Figure("answer, 99th percentile", p99_ms, "ms", reference=f"{pace:.0f} a second"),
        Figure("events on the stream", len(tally.events), "events"),
        Figure("head node", share, "% of a core"),
    )
