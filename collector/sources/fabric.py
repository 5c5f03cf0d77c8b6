"""Switch ports, as Prometheus exporters of switches, of UFM or of gNMI gateways tell of them; for the head node.

Every target has a thread, so that one that is slow, gone or mad delays nobody: `read` only takes what has come since.
A row's time is when the answer was there. Exporters that give their samples a time of their own are asked more often
than they look: an answer with nothing newer for a port gives no row for it. Values are floats on the way, exact up to
2**53, which is 9 PB.
"""

import ssl
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from collector.sources.fabric_ports import PortKey, PortScan, parse, rows_of_scan, scan_ports, scrape
from collector.sources.fabric_targets import Profile, Target, load_targets
from collector.sources.source import PlainSource, Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import LockstepError, NotPresent
from lockstep.records import FabricCounter

if TYPE_CHECKING:
    import httpx

_log = structlog.get_logger("fabric")

_MOST_WAITING = 4  # answers of a target that nobody has taken yet; the oldest goes first and is counted
_LAST_ANSWER_S = 2.0  # how long the end waits for requests under way; their threads do not keep the process


class FabricSource(PlainSource):
    """Scrapes the exporters that `targets_file` names (fabric_targets.py explains its form).

    Threads: one per target, at most 256. Memory: per target the ports it serves, at most 20,000, and four answers.
    """

    name = "fabric"
    period_s = 1.0  # how often answers are taken; how often each target is asked is its own setting

    def __init__(self, host: str, targets_file: Path | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        named = load_targets(targets_file) if targets_file else []
        self._scrapers = [_Scraper(host, target, profile, self._clock, self._stop) for target, profile in named]

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        if not self._scrapers:
            raise NotPresent("no exporter of a switch is named in the settings")
        rows: list[FabricCounter] = []
        dropped = 0
        for scraper in self._scrapers:
            scraper.start_once()
            answers, lost = scraper.take()
            rows += (row for answer in answers for row in answer)
            dropped += lost
        return Reading(tables_of(fabric_counters=rows), watermark_ns=now_ns, dropped=dropped)

    def close(self) -> None:
        self._stop.set()
        deadline_ns = self._clock.monotonic_ns() + int(_LAST_ANSWER_S * NS_PER_S)
        for scraper in self._scrapers:
            scraper.join(max(0.0, (deadline_ns - self._clock.monotonic_ns()) / NS_PER_S))


class _Scraper:
    """Asks one target again and again on a thread of its own."""

    def __init__(self, host: str, target: Target, profile: Profile, clock: Clock, stop: threading.Event) -> None:
        self._host, self._target, self._profile = host, target, profile
        self._clock, self._stop = clock, stop
        self._guard = threading.Lock()  # over answers and the time they get: none is older than one already taken
        self._answers: deque[list[FabricCounter]] = deque()
        self._lost = 0
        self._stamps: dict[PortKey, float] = {}
        self._complaint = ""
        self._client: httpx.Client | None = None  # of the thread alone
        self._thread = threading.Thread(target=self._follow, name=f"fabric-{target.url}", daemon=True)

    def start_once(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def take(self) -> tuple[list[list[FabricCounter]], int]:
        """Return answers that nobody has seen yet, and how many rows had to go unseen."""
        with self._guard:
            answers, self._answers = list(self._answers), deque()
            lost, self._lost = self._lost, 0
        return answers, lost

    def _follow(self) -> None:
        while not self._stop.is_set():
            begin_ns = self._clock.monotonic_ns()
            try:
                self._complain(self._ask())
            except Exception as error:  # noqa: BLE001  # whatever an exporter says, the others go on
                self._complain(_reason(error))
            spent_s = (self._clock.monotonic_ns() - begin_ns) / NS_PER_S
            self._clock.wait(self._stop, max(self._target.every_s - spent_s, 0.0))
        if self._client:
            self._client.close()

    def _ask(self) -> str:
        """Scrape once, keep the rows, and return what stands against the answer."""
        self._client = self._client or _client(self._target)  # made here: a certificate that is missing may come
        exposition = scrape(self._client, self._target, self._profile.wanted_lines, self._clock)
        scan = scan_ports(parse(exposition), self._profile, self._target)
        with self._guard:
            rows = rows_of_scan(scan, self._host, self._clock.now_ns())
            self._answers.append([row for key, row in rows.items() if self._is_newer(key, scan)])
            while len(self._answers) > _MOST_WAITING:
                self._lost += len(self._answers.popleft())
        return scan.complaint(len(rows))

    def _is_newer(self, key: PortKey, scan: PortScan) -> bool:
        stamp = scan.ports[key].stamp
        if stamp is None:
            return True
        before = self._stamps.get(key)
        self._stamps[key] = stamp
        if len(self._stamps) > 2 * len(scan.ports):  # ports that are gone
            self._stamps = {one: self._stamps[one] for one in scan.ports if one in self._stamps}
        return before != stamp

    def _complain(self, complaint: str) -> None:
        """Say it when it changes, not each time round; an empty complaint means that all is well."""
        if complaint and complaint != self._complaint:
            _log.warning("exporter of switches cannot be read in full", target=self._target.url, problem=complaint)
        if self._complaint and not complaint:
            _log.info("exporter of switches is read in full again", target=self._target.url)
        self._complaint = complaint


def _client(target: Target) -> "httpx.Client":
    """Return a client; its library is loaded here, because only a head node has switches to ask."""
    import httpx

    verify = ssl.create_default_context(cafile=str(target.ca_file)) if target.ca_file else True
    return httpx.Client(timeout=target.timeout_s, trust_env=False, verify=verify)


def _reason(error: Exception) -> str:
    if isinstance(error, LockstepError):
        return str(error)
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
