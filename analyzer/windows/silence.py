"""Who says nothing: how far the reports of hosts reach, how often they come, and when a host counts as silent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from analyzer.windows.jobs import list_hosts
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS

_INTERVAL_NS = 5 * NS_PER_S // 2  # a collector sends a batch at least this often; for hosts of which one is known
_MISSED_REPORTS = 3  # in a row: one is late on a busy host, two where its gateway repeats a batch
_MOST_LAG = 2  # in times of silence; a source that gives no readings for ten seconds is told as stalled long before
_OF_RANKS = ("nccl_rings", "simulated")  # sources that tell of ranks; of a job without them nothing is known
# Whose readings each table holds; where one is missing, the host is silent for that table.
_FILLED_BY = {
    "nic_counters": ("links", "rdma"),
    "gpu_health": ("gpu",),
}

# The distance of two reports is the median one: an outage is no rhythm.
_REPORTS = f"""
SELECT host, max(watermark_ns) AS watermark_ns, max(ts_ns) AS last_seen_ns,
       arrayPopFront(arrayDifference(arraySort(groupUniqArray(ts_ns)))) AS intervals_ns,
       toInt64(arrayReduce('quantileExact', intervals_ns)) AS apart_ns,
       argMax(ifNull(ended, false), ts_ns) AS has_ended, argMax(gateway, ts_ns) AS last_gateway,
       argMax(stalled, ts_ns) AS stalled_now
FROM agents WHERE {OF_HOSTS} AND ts_ns >= {{since:Int64}} GROUP BY host
"""
_CLOCKS = f"""
SELECT host, argMax(offset_ns, ts_ns) AS offset_ns_, argMax(error_ns, ts_ns) AS error_ns_
FROM clocks WHERE {OF_HOSTS} AND ts_ns >= {{since:Int64}} GROUP BY host
"""


@dataclass(frozen=True, slots=True)
class HostReport:
    """How far one host's telemetry reaches, when it was last seen, and how often it reports."""

    watermark_ns: int
    last_seen_ns: int
    interval_ns: int = _INTERVAL_NS  # between two reports
    offset_ns: int = 0  # of its clock from the reference, as far as it told that
    error_ns: int = 0  # bound on the error of the offset
    has_ended: bool = False  # its agent stopped in order: it is absent by its own word
    gateway: str | None = None  # that it sends to
    stalled: Mapping[str, int] = field(default_factory=dict)  # sources without readings; up to when each told all
    lag_ns: int = 0  # what its newest report leaves untold

    @property
    def told_ns(self) -> int:
        """Return up to when all was told of ranks, on the host's clock."""
        return min([self.watermark_ns, *(self.stalled[source] for source in _OF_RANKS if source in self.stalled)])

    @property
    def missing_source(self) -> str | None:
        """Return the source of which readings are missing that would tell of ranks, though the agent speaks."""
        return next((source for source in _OF_RANKS if source in self.stalled), None)

    @property
    def reach_ns(self) -> int:
        """Return up to when all was told of ranks, on the reference clock."""
        return self.told_ns - self.offset_ns

    @property
    def patience_ns(self) -> int:
        """Return for how long nothing may come before the host is silent."""
        return _MISSED_REPORTS * self.interval_ns + self.error_ns


def find_reporting(table: str, hosts: Iterable[str], reports: Mapping[str, HostReport]) -> list[str]:
    """Return the hosts that tell what a table holds: all but those of which a source that fills it has stalled."""
    sources = frozenset(_FILLED_BY[table])
    return [host for host in hosts if host not in reports or not sources & reports[host].stalled.keys()]


def find_reports(store: Store, hosts: Iterable[str], since_ns: int) -> dict[str, HostReport]:
    """Return the newest report of each host that sent one since then."""
    asked = {"hosts": list_hosts(hosts), "since": since_ns}
    clocks = {row["host"]: (row["offset_ns_"], row["error_ns_"]) for row in store.query(_CLOCKS, asked).to_pylist()}
    return {
        row["host"]: HostReport(
            row["watermark_ns"],
            row["last_seen_ns"],
            row["apart_ns"] or _INTERVAL_NS,
            *clocks.get(row["host"], (0, 0)),
            has_ended=bool(row["has_ended"]),
            gateway=row["last_gateway"],
            stalled=dict(row["stalled_now"]),
            lag_ns=row["last_seen_ns"] - row["watermark_ns"],
        )
        for row in store.query(_REPORTS, asked).to_pylist()
    }


def find_silent(hosts: Iterable[str], reports: Mapping[str, HostReport], end_ns: int) -> frozenset[str]:
    """Return the hosts that had stopped telling by then; nobody, where there are no reports at all.

    Hosts never end at the same moment: one is silent when several of its own reports are missing up to then, or up to
    the newest report of all, in a capture in which nobody will send more.

    >>> reports = {"h0": HostReport(20 * NS_PER_S, 0), "h1": HostReport(19 * NS_PER_S, 0), "h2": HostReport(9, 0)}
    >>> sorted(find_silent(reports, reports, end_ns=60 * NS_PER_S))
    ['h2']
    """
    wanted_ns = min(end_ns, max((report.reach_ns for report in reports.values()), default=0))
    told = {host for host, report in reports.items() if report.reach_ns + report.patience_ns >= wanted_ns}
    return frozenset(hosts) - told if reports else frozenset()


def find_speaking(reports: Mapping[str, HostReport], end_ns: int) -> frozenset[str]:
    """Return the hosts whose agents still speak then, whatever they have to tell."""
    heads = {host: replace(report, stalled={}) for host, report in reports.items()}
    return frozenset(reports) - find_silent(heads, heads, end_ns)


@dataclass(frozen=True, slots=True)
class Closing:
    """Whether a window can be analysed, and who says nothing about it."""

    closed: bool
    silent: frozenset[str]


def judge_window(
    end_ns: int, hosts: frozenset[str], reports: Mapping[str, HostReport], now_ns: int, silence_ns: int
) -> Closing:
    """Return whether a window that ends then is closed for a job on these hosts.

    A host that was not seen for `silence_ns`, and for several of its reports, is silent: its rows are missing, not
    healthy, and nobody waits for it; nor for all of them, once any has reported. So is one at once whose agent said
    that it ends, or that what tells of ranks has stalled. One that speaks but lags holds the window open, up to twice
    that long: a watermark that stands must not hold a job for ever.

    >>> reports = {"h0": HostReport(20, last_seen_ns=100), "h1": HostReport(5, last_seen_ns=30, interval_ns=1)}
    >>> judge_window(10, frozenset({"h0", "h1"}), reports, now_ns=100, silence_ns=50)
    Closing(closed=True, silent=frozenset({'h1'}))
    """
    behind = {host for host in hosts if host not in reports or reports[host].told_ns < end_ns}
    silent = {host for host in behind if host not in reports or _is_unseen(reports[host], now_ns, silence_ns)}
    is_known = any(host in reports and reports[host].watermark_ns for host in hosts)
    return Closing(closed=behind == silent and is_known, silent=frozenset(silent))


def _is_unseen(report: HostReport, now_ns: int, silence_ns: int) -> bool:
    if report.has_ended or report.missing_source or report.lag_ns > _MOST_LAG * silence_ns:
        return True
    unseen_ns = now_ns - report.last_seen_ns - report.error_ns
    return unseen_ns > max(silence_ns, _MISSED_REPORTS * report.interval_ns)
