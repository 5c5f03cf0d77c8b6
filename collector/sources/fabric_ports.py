"""What the samples of one answer say about each port of each switch; pure, and bounded in the ports it keeps."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from re import Pattern
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from collector.sources.fabric_targets import MetricRule, Profile, Target, canonical, rename
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadInput
from lockstep.records import FabricCounter

if TYPE_CHECKING:  # whoever scrapes loads it; other agents go without its megabytes
    import httpx

MOST_KEPT_BYTES = 32 << 20  # about 200,000 samples
_MOST_LINE_BYTES = 64 << 10
_UNPACKED_PIECE = 1 << 20
# The strict form is slower to read.
_ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"


@dataclass(frozen=True)
class Exposition:
    """The lines of an answer that somebody wants."""

    text: str
    is_openmetrics: bool


def scrape(client: "httpx.Client", target: Target, wanted: Pattern[bytes], clock: Clock) -> Exposition:
    """Return what the exporter says, or raise BadInput or an error of httpx or of the system."""
    deadline_ns = clock.monotonic_ns() + int(target.timeout_s * NS_PER_S)
    with client.stream("GET", target.url, headers=_headers(target)) as answer:
        if answer.status_code != HTTPStatus.OK:
            raise BadInput(f"it answers with status {answer.status_code}")
        # Pieces as they come, at most 64 KiB: asked for a size, httpx would wait for one beyond the deadline.
        raw = _until(answer.iter_raw(), deadline_ns, clock)
        plain = _bounded(_unpacked(raw, answer.headers.get("Content-Encoding", "identity")), target.max_mb << 20)
        kept = b"\n".join(_kept(plain, wanted))
        is_openmetrics = answer.headers.get("Content-Type", "").startswith("application/openmetrics-text")
    try:
        return Exposition(kept.decode() + "\n", is_openmetrics)
    except UnicodeDecodeError:
        raise BadInput("its answer is not text") from None


def _headers(target: Target) -> dict[str, str]:
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip"}
    if target.authorization_file:
        headers["Authorization"] = target.authorization_file.read_text(encoding="ascii").strip()
    return headers


def _until(pieces: Iterable[bytes], deadline_ns: int, clock: Clock) -> Iterator[bytes]:
    """Pass pieces on until the deadline: one that comes byte by byte never runs into the time-out of a read."""
    for piece in pieces:
        if clock.monotonic_ns() > deadline_ns:
            raise BadInput("its answer took too long")
        yield piece


def _unpacked(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    if encoding == "identity":
        yield from pieces
        return
    if encoding != "gzip":
        raise BadInput(f"its answer is packed as {encoding[:20]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(wbits=31)  # gzip
    try:
        for piece in pieces:
            while piece:
                yield unpacker.decompress(piece, _UNPACKED_PIECE)
                piece = unpacker.unconsumed_tail
            if unpacker.eof:  # whatever stands behind the end would only fill the memory
                break
        yield unpacker.flush()
    except zlib.error as error:
        raise BadInput(f"its answer cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise BadInput("its answer was cut off")


def _bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise BadInput(f"its answer is larger than {most >> 20} MiB")
        yield piece


def _kept(pieces: Iterable[bytes], wanted: Pattern[bytes]) -> Iterator[bytes]:
    """Pass on the lines that somebody wants, of whole lines only."""
    rest, kept = b"", 0
    for piece in pieces:
        whole, newline, tail = piece.rpartition(b"\n")
        if not newline:
            rest += tail
            lines = b""
        else:
            lines, rest = rest + whole, tail
        if len(rest) > _MOST_LINE_BYTES:
            raise BadInput(f"a line of its answer is longer than {_MOST_LINE_BYTES >> 10} KiB")
        for found in wanted.finditer(lines):
            kept += len(found[0])
            if kept > MOST_KEPT_BYTES:
                raise BadInput(f"it serves more than {MOST_KEPT_BYTES >> 20} MiB of what the profile wants")
            yield found[0]
    yield from (found[0] for found in wanted.finditer(rest))


MOST_PORTS = 20_000  # of one target: 300 switches of 64 ports
_LONGEST_NAME = 200
_MUST_HAVE = ("rx_bytes", "tx_bytes")  # and the state
_U64, _U32 = 1 << 64, 1 << 32

PortKey = tuple[str, str]  # switch and port, as in the topology


@dataclass
class PortReading:
    """One port as one answer tells it."""

    columns: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    extra: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    up: bool | None = None
    stamp: float | None = None  # newest time that the exporter itself gives its samples

    def add(self, rule: MetricRule, sample: Sample) -> None:
        """Take a sample; where several tell the state, as after a change, one that says down holds."""
        if rule.column == "up":
            self.up = rule.is_up(sample.labels, sample.value) and self.up is not False
        elif rule.column == "extra":
            self.extra[rule.name or rule.metric] += sample.value * rule.scale
        else:
            self.columns[rule.column] += sample.value * rule.scale
        if sample.timestamp is not None:
            self.stamp = max(float(sample.timestamp), self.stamp or 0.0)


@dataclass
class PortScan:
    """All ports of one answer, and what stands against it."""

    ports: dict[PortKey, PortReading] = field(default_factory=dict)
    too_many: bool = False
    nameless: int = 0  # samples that do not say whose they are

    def complaint(self, rows: int) -> str:
        """Return what a person should know about the answer; empty when all is well."""
        ports = self.ports.values()
        missing = ["up"] if any(port.up is None for port in ports) else []
        missing += [name for name in _MUST_HAVE if any(_count(port, name) is None for port in ports)]
        lacking = f"{len(self.ports) - rows} ports give no row, because nothing says {', '.join(missing)}"
        sentences = [
            "it serves nothing that the profile knows" if not self.ports else "",
            lacking if missing else "",
            f"it serves more than {MOST_PORTS} ports; the rest is left out" if self.too_many else "",
            "samples name no switch or port" if self.nameless else "",
        ]
        return "; ".join(filter(None, sentences))


def parse(exposition: Exposition) -> Iterator[Sample]:
    """Yield all samples, up to a BadInput where they are not in the format."""
    families: Callable[[str], Iterable[Metric]] = parse_openmetrics if exposition.is_openmetrics else parse_text
    try:
        for family in families(exposition.text):
            yield from family.samples
    except (ValueError, LookupError, TypeError, AttributeError):  # what the parsers are known to raise on garbage
        raise BadInput("its answer is not in the Prometheus format") from None


def scan_ports(samples: Iterable[Sample], profile: Profile, target: Target) -> PortScan:
    """Return what these samples say by port; samples of nothing that the profile knows say nothing."""
    known = [(key, sample) for sample in samples if (key := profile.key_of(sample.name)) is not None]
    names = _switch_names(known, profile)

    @cache
    def key_of(switch: str, port: str) -> PortKey:
        named = target.switch or rename(names.get(switch, switch), target.switch_names)
        return named, rename(port, target.port_names)

    scan = PortScan()
    for metric, sample in known:
        for rule in profile.rules.get(metric, ()):
            if rule.holds_for(sample.labels):
                _take(scan, rule, sample, _labels_of(sample, profile), key_of)
    for port in scan.ports.values():
        port.up = True if profile.linked_only and port.up is None else port.up
    return scan


def rows_of_scan(scan: PortScan, host: str, ts_ns: int) -> dict[PortKey, FabricCounter]:
    """Return the rows of those ports that tell what a row must have."""
    rows = {key: _row(key, port, host, ts_ns) for key, port in scan.ports.items()}
    return {key: row for key, row in rows.items() if row is not None}


def _switch_names(known: Iterable[tuple[str, Sample]], profile: Profile) -> Mapping[str, str]:
    reported = profile.switch_names
    if reported is None:
        return {}
    wanted = canonical(reported.metric)
    labels = (sample.labels for metric, sample in known if metric == wanted)
    return {
        one[reported.key]: one[reported.name] for one in labels if one.get(reported.key) and one.get(reported.name)
    }


def _labels_of(sample: Sample, profile: Profile) -> tuple[str, str]:
    """Return what the sample itself calls switch and port; empty where it does not."""
    switch = next((text for label in profile.switch if (text := sample.labels.get(label))), "")
    port = next((text for label in profile.port if (text := sample.labels.get(label))), "")
    return switch, port


def _take(
    scan: PortScan, rule: MetricRule, sample: Sample, reported: tuple[str, str], key_of: Callable[[str, str], PortKey]
) -> None:
    if max(map(len, reported)) > _LONGEST_NAME:
        scan.nameless += 1
        return
    key = key_of(*reported)
    if not reported[1] or (not reported[0] and not key[0]):
        scan.nameless += 1
    elif all(key):  # an empty name is one that the site leaves out
        port = scan.ports.get(key)
        if port is None and len(scan.ports) >= MOST_PORTS:
            scan.too_many = True
            return
        (port or scan.ports.setdefault(key, PortReading())).add(rule, sample)


def _row(key: PortKey, port: PortReading, host: str, ts_ns: int) -> FabricCounter | None:
    up, rx_bytes, tx_bytes = port.up, _count(port, "rx_bytes"), _count(port, "tx_bytes")
    if up is None or rx_bytes is None or tx_bytes is None:
        return None
    speed = _integer(port.columns.get("speed_mbps"), _U32) if up else None
    counted = ("errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected")
    return FabricCounter(
        host=host,
        ts_ns=ts_ns,
        switch=key[0],
        port=key[1],
        up=up,
        speed_mbps=speed or None,
        rx_bytes=rx_bytes,
        tx_bytes=tx_bytes,
        **{name: _count(port, name) for name in counted},
        extra={name: count for name, value in port.extra.items() if (count := _integer(value, _U64)) is not None},
    )


def _count(port: PortReading, column: str) -> int | None:
    return _integer(port.columns.get(column), _U64)


def _integer(value: float | None, limit: int) -> int | None:
    """Return a count, or None for what is none: NaN, infinite, negative, or beyond what the column holds."""
    return round(value) if value is not None and 0 <= value < limit else None
