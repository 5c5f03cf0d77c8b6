"""Which windows are closed: all hosts have sent everything up to their end, or are known to be silent."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, end excluded."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class HostReport:
    """How far one host's telemetry reaches and when it was last heard of."""

    watermark_ns: int
    heard_ns: int


@dataclass(frozen=True, slots=True)
class Closing:
    """Whether a window can be analysed, and who says nothing about it."""

    closed: bool
    silent: frozenset[str]


def judge_window(
    window: Window, hosts: frozenset[str], reports: Mapping[str, HostReport], now_ns: int, silence_ns: int
) -> Closing:
    """Return whether the window is closed for a job on these hosts.

    A host that was not heard of for `silence_ns` is silent: its rows are missing, not healthy, and nobody
    waits for it. One that speaks but lags holds the window open.

    >>> reports = {"h0": HostReport(watermark_ns=20, heard_ns=100), "h1": HostReport(watermark_ns=5, heard_ns=30)}
    >>> judge_window(Window(0, 10), frozenset({"h0", "h1"}), reports, now_ns=100, silence_ns=50)
    Closing(closed=True, silent=frozenset({'h1'}))
    """
    behind = {host for host in hosts if host not in reports or reports[host].watermark_ns < window.end_ns}
    silent = {host for host in behind if host not in reports or now_ns - reports[host].heard_ns > silence_ns}
    return Closing(closed=behind == silent and silent != hosts, silent=frozenset(silent))


def split_windows(start_ns: int, end_ns: int, length_ns: int) -> list[Window]:
    """Return the whole windows between two moments, aligned to the epoch so that reruns see the same ones."""
    first = -(-start_ns // length_ns) * length_ns
    return [Window(begin, begin + length_ns) for begin in range(first, end_ns - length_ns + 1, length_ns)]
