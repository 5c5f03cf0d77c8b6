"""Logs of nccl-tests: who took part in each test, and what it measured by size.

A line of a log is the mean over all iterations and ranks of a whole communicator, and nothing tells when an iteration
ran or what one rank did. So it is no operation and no statistic of a second: rows of `collectives` or `op_stats`
would have to be invented. What is told goes where it is true:

- `comms`: rank, host, process and PCI address of every device of a test; CUDA's number of a GPU is not NVML's.
- `events`: one per size, on the host of rank 0, which wrote the log. The message has the measured values; wrong
  results are errors. A test that failed says so on the host that noticed, one that just ends is a warning, and so is
  a host that is slow in its tests with most others.

A test of two hosts cannot tell which of them is slow. Where every host was tested with several others, a host that is
slow in nearly all of its pairs is to blame; a pair that is slow while its hosts are not is a wire between them.

When a test ran is not in a log either: everything has the time at which the file was last written.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from importers.traces.readings import Reading, Row
from lockstep.errors import BadInput

_PREFIX = re.compile(r"^\[\d+,\d+\]<std\w+>:\s?")  # what mpirun --tag-output writes before a line
_VERSION = re.compile(r"# nccl-tests version (\S{1,40}).*nccl-library=(\d{4,6})")
_STARTING = re.compile(r"# Collective test starting: (\S{1,80})")
_THREADS = re.compile(r"# nThread \d+ ")  # every test has this line, also those of old releases, which tell no name
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+(\d{1,9})\s+on\s+(\S{1,253})\s+device\s+\d+"
    r" \[([0-9a-fA-Fx:.]+)\]"
)
_HEADING = re.compile(r"#\s+size\s+count\s+type\s+(.*)")
_ROW = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+(\w{1,30})\s(.*)")
_FAILURE = re.compile(r"(\S{1,253}): Test (?:NCCL|CUDA) failure .*")
_TRACE = re.compile(r" \.\. (\S{1,253}) pid \d+: Test failure .*")
_BOUNDS = re.compile(r"# Out of bounds values : (\d+) (\S+)")
_MEAN = re.compile(r"# Avg bus bandwidth\s+: ")
_MEASURED = ("us", "algbw_gbs", "busbw_gbs", "wrong")
_NO_NUMBER = "N/A"
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?")
_SLOW = 0.8  # of the median pair: those of healthy H100 nodes stay within 5 % of each other, a lost rail costs half
_FEWEST_PAIRS = 3  # of a host: with two, one slow partner is half of what is known
_NEARLY_ALL = 0.75  # of a host's pairs

Pair = tuple[str, str]


@dataclass(frozen=True)
class Log:
    """A log, its lines as they come, and when it was last written."""

    file: str
    lines: Iterable[bytes]
    ts_ns: int


@dataclass(frozen=True)
class Device:
    """A rank of a test, and where it ran."""

    rank: int
    pid: int
    host: str
    pci: str


@dataclass
class Run:
    """One test, as far as it has been read."""

    name: str = "nccl-tests"
    version: str = ""
    library: str = ""
    devices: list[Device] = field(default_factory=list)
    has_table: bool = False
    counts_wrong: bool = False  # old releases write the largest deviation instead, which is no count
    is_over: bool = False
    busbw_gbs: dict[int, float] = field(default_factory=dict)  # by size, the better of out of place and in place

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(device.host for device in self.devices))


@dataclass(frozen=True)
class Slow:
    """A host, or a pair of hosts where neither is slow elsewhere, and what share of the usual it reaches."""

    hosts: tuple[str, ...]
    test: str
    size: int
    share: float
    pairs: int


def parse_nccl_tests(logs: Iterable[Log], job: str) -> Reading:
    """Return what these logs tell; a log without any test is a BadInput."""
    reading, done, ts_ns = Reading(), list[Run](), 0
    for log in logs:
        runs = _read_log(reading, log, job)
        if not runs:
            raise BadInput(f"{log.file}: has no test of nccl-tests in it")
        for number, run in enumerate(runs, 1):
            _add_comms(reading, run, log, number, job)
        done += runs
        ts_ns = max(ts_ns, log.ts_ns)
    slow, compared = _compare_pairs(run for run in done if len(run.hosts) == 2)
    for each in slow:
        _add_slow(reading, each, ts_ns, job)
    results = sum(row["kind"] == "nccl_test" for row in reading.rows.get("events", ()))
    if results and not compared:
        remedy = "comparing takes a host that was tested with three others"
        reading.unread[f"results are kept as events and judged by nobody: {remedy}"] += results
    return reading


def _add_slow(reading: Reading, slow: Slow, ts_ns: int, job: str) -> None:
    what = f"reaches {slow.share:.0%} of the usual bus bandwidth in {slow.test} of {slow.size} bytes"
    who = (
        f"{slow.hosts[0]} {what} with {slow.pairs} other hosts"
        if len(slow.hosts) == 1
        else f"{' with '.join(slow.hosts)} {what}"
    )
    row: Row = {"host": slow.hosts[0], "ts_ns": ts_ns, "source": "nccl-tests", "kind": "nccl_test_slow"}
    component = f"host:{slow.hosts[0]}" if len(slow.hosts) == 1 else f"job:{job}"
    reading.add("events", row | {"component": component, "severity": "warning", "message": who})


def _read_log(reading: Reading, log: Log, job: str) -> list[Run]:
    runs: list[Run] = []
    version = ("", "")
    for number, raw in enumerate(log.lines, 1):
        line = _PREFIX.sub("", raw.decode(errors="replace")).rstrip()
        if found := _VERSION.match(line):
            version = (found[1], _release(found[2]))
        elif found := _STARTING.match(line):
            _end(reading, runs, log, job)
            runs.append(Run(found[1], *version))
        elif _THREADS.match(line):
            if not runs or runs[-1].devices:
                _end(reading, runs, log, job)
                runs.append(Run("nccl-tests", *version))
        elif runs:
            _take(reading, runs[-1], line, _Location(log, number, job))
    _end(reading, runs, log, job)
    return runs


@dataclass(frozen=True)
class _Location:
    log: Log
    number: int
    job: str

    def refuse(self, problem: str) -> BadInput:
        return BadInput(f"{self.log.file}, line {self.number}: {problem}")


def _take(reading: Reading, run: Run, line: str, location: _Location) -> None:
    """Take a line of a test; whatever else stands between them is the job's own talk."""
    if found := _DEVICE.match(line):
        run.devices.append(Device(int(found[1]), int(found[2]), found[3], found[4]))
    elif found := _HEADING.match(line):
        run.has_table, run.counts_wrong = True, "#wrong" in found[1]
    elif run.has_table and (found := _ROW.fullmatch(line)):
        _add_size(reading, run, found, location)
    elif (found := _FAILURE.fullmatch(line)) or (not run.is_over and (found := _TRACE.fullmatch(line))):
        run.is_over = True
        _add_event(reading, location, found[1], "nccl_test_failed", "error", f"{run.name}: {line.strip()}")
    elif found := _BOUNDS.match(line):
        run.is_over = True
        if found[2] != "OK":
            message = f"{run.name}: {found[1]} values out of bounds"
            _add_event(reading, location, _first_host(run, location), "wrong_results", "error", message)
    elif _MEAN.match(line):
        run.is_over = True


def _add_size(reading: Reading, run: Run, found: re.Match[str], location: _Location) -> None:
    values = found[4].split()[-8:]
    if len(values) < 8 or not all(value == _NO_NUMBER or _NUMBER.fullmatch(value) for value in values):
        raise location.refuse("is no whole row of the table: two times four measured values belong to it")
    host = _first_host(run, location)
    names = _MEASURED if run.counts_wrong else (*_MEASURED[:3], "deviation")
    labels = [f"{side}_{name}" for side in ("out_of_place", "in_place") for name in names]
    words = [f"{label}={value}" for label, value in zip(labels, values, strict=True) if value != _NO_NUMBER]
    where = f"{len(run.devices)} ranks on {', '.join(run.hosts[:8])}{' and others' if len(run.hosts) > 8 else ''}"
    message = f"{run.name} size={found[1]} count={found[2]} type={found[3]} {' '.join(words)} ({where})"
    run.busbw_gbs[int(found[1])] = max(float(value) for value in (values[2], values[6], "0") if value != _NO_NUMBER)
    wrong = sum(float(four[3]) for four in (values[:4], values[4:]) if run.counts_wrong and four[3] != _NO_NUMBER)
    kind, severity = ("wrong_results", "error") if wrong else ("nccl_test", "info")
    _add_event(reading, location, host, kind, severity, message)


def _first_host(run: Run, location: _Location) -> str:
    if not run.devices:
        raise location.refuse("nothing above it says on which devices the test ran")
    return run.devices[0].host


def _end(reading: Reading, runs: list[Run], log: Log, job: str) -> None:
    """Tell of a test that began and came to no end, which a log shows by nothing but silence."""
    if runs and runs[-1].devices and not runs[-1].is_over:
        run = runs[-1]
        run.is_over = True
        message = f"{run.name}: the log just ends"
        _add_event(reading, _Location(log, 0, job), run.hosts[0], "nccl_test_unfinished", "warning", message)


def _add_event(reading: Reading, location: _Location, host: str, kind: str, severity: str, message: str) -> None:
    component = f"host:{host}" if kind == "nccl_test_failed" else f"job:{location.job}"
    row: Row = {"host": host, "ts_ns": location.log.ts_ns, "source": "nccl-tests", "kind": kind}
    reading.add("events", row | {"component": component, "severity": severity, "message": message})


def _add_comms(reading: Reading, run: Run, log: Log, number: int, job: str) -> None:
    found = f"{log.file} {number} {[(device.rank, device.host, device.pid) for device in run.devices]}"
    comm = int.from_bytes(hashlib.sha256(found.encode()).digest()[:8], "big")  # logs do not tell NCCL's own
    for device in {device.rank: device for device in run.devices}.values():
        row: Row = {"host": device.host, "job": job, "attempt": 0, "comm": comm, "name": run.name}
        row |= {"rank": device.rank, "nranks": len(run.devices), "nnodes": len(run.hosts), "pid": device.pid}
        row |= {"gpu_pci": device.pci if ":" in device.pci else None, "nccl_version": run.library or None}
        row |= {"plugin_version": f"nccl-tests {run.version}".strip(), "detail": "ops", "init_ns": log.ts_ns}
        reading.add("comms", row)


def _release(code: str) -> str:
    """Return NCCL's release behind the number it gives itself.

    >>> _release("22902"), _release("2708")
    ('2.29.2', '2.7.8')
    """
    number = int(code)
    base = 10_000 if number >= 10_000 else 1_000  # since 2.9 there are two digits more
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _compare_pairs(runs: Iterable[Run]) -> tuple[list[Slow], int]:
    """Return who is slow, and how many results were compared: of each test the largest size that most pairs did."""
    tests: dict[tuple[str, int], dict[int, dict[Pair, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        first, last = sorted(run.hosts)
        for size, rate in run.busbw_gbs.items():
            tests[run.name, len(run.devices)][size].setdefault((first, last), []).append(rate)
    found: list[Slow] = []
    compared = 0
    for (test, _), sizes in sorted(tests.items()):
        size = max(sizes, key=lambda size: (len(sizes[size]), size))
        rates = {pair: median(rates) for pair, rates in sizes[size].items()}
        usual = median(rates.values())
        shares = {pair: rate / usual for pair, rate in rates.items()} if usual else {}
        if any(len(mine) >= _FEWEST_PAIRS for mine in _by_host(shares).values()):
            compared += len(shares)
            found += [Slow(hosts, test, size, share, pairs) for hosts, share, pairs in _find_slow(shares)]
    return found, compared


def _by_host(shares: Mapping[Pair, float]) -> dict[str, list[float]]:
    by_host: dict[str, list[float]] = defaultdict(list)
    for pair, share in shares.items():
        for host in pair:
            by_host[host].append(share)
    return by_host


def _find_slow(shares: Mapping[Pair, float]) -> list[tuple[tuple[str, ...], float, int]]:
    """Return hosts, then pairs, with share and number of pairs; pairs of the slowest host accuse nobody else."""
    found: list[tuple[tuple[str, ...], float, int]] = []
    rest = dict(shares)
    while suspects := [
        (median(mine), host, len(mine))
        for host, mine in _by_host(rest).items()
        if len(mine) >= _FEWEST_PAIRS and sum(share < _SLOW for share in mine) >= _NEARLY_ALL * len(mine)
    ]:
        share, host, pairs = min(suspects)
        found.append(((host,), share, pairs))
        rest = {pair: share for pair, share in rest.items() if host not in pair}
    return found + [(pair, share, 1) for pair, share in sorted(rest.items()) if share < _SLOW]
