"""What the answers to probes mean: rows of packets, rows of paths, and who has never answered."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from collector.probing.packets import Flow
from collector.probing.paths import SILENT, Atlas, Remembered, Way
from collector.probing.rounds import Outcome, Round
from lockstep.records import Path, Probe
from lockstep.topology import split_end

_SILENCES = 3  # rounds without any answer after which somebody is called silent
_ANSWERS = -1
_MOST_ANSWERERS = 16_384  # remembered, about 300 bytes each
_MOST_STRANGERS = 1_024  # addresses of switches that nobody named


@dataclass(frozen=True, slots=True)
class Entry:
    """What one look gives to write down."""

    probe: Probe | None = None
    path: Path | None = None
    silence: str = ""  # said once about somebody who has never answered


class ProbeLedger:
    """Judges looks one after the other; remembers ways and who answers."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._silences: OrderedDict[tuple[str, str, str, bool], int] = OrderedDict()
        self.strangers: set[str] = set()  # addresses that answered and that the settings do not name

    def write(self, each: Round, outcome: Outcome, now_ns: int) -> Entry:
        """Return what one look gives; silence of somebody who never answered gives no row, for it may be no loss."""
        is_answered = outcome.rtt_ns is not None
        silences = self._count_silence(each, is_answered)
        way = self._atlas.ways.resolve(each.flow, self._name(outcome.responders))
        known = self._learn(each, way, now_ns) if is_answered or outcome.responders else None
        if not is_answered:
            self._atlas.catalogue.suspect(each.flow)
        return Entry(
            None if silences > 0 else self._probe_row(each.flow, outcome, way),
            self._path_row(each.flow, known) if known else None,
            _describe_silence(each) if silences == _SILENCES else "",
        )

    def _learn(self, each: Round, way: Way | None, now_ns: int) -> Remembered | None:
        if way is None or not way.is_complete or not each.is_traced:
            return None
        return self._atlas.catalogue.learn(each.flow, way, now_ns)

    def _name(self, responders: Sequence[str]) -> list[str]:
        """Return the switches behind addresses; strangers are noted and left out."""
        ends = [self._atlas.book.end_at(address) for address in responders]
        unknown = {address for address, end in zip(responders, ends, strict=True) if end is None}
        if len(self.strangers) < _MOST_STRANGERS:
            self.strangers |= unknown
        return [end for end in ends if end is not None]

    def _count_silence(self, each: Round, is_answered: bool) -> int:
        """Return how often somebody has been silent who never answered; `_ANSWERS` when he did, now or before."""
        who = (each.flow.dst, each.flow.dst_nic, each.flow.proto, each.ends_at_host)
        before = self._silences.pop(who, 0)
        count = _ANSWERS if is_answered or before == _ANSWERS else min(before + 1, _SILENCES + 1)
        self._silences[who] = count
        if len(self._silences) > _MOST_ANSWERERS:
            self._silences.popitem(last=False)
        return count

    def _probe_row(self, flow: Flow, outcome: Outcome, way: Way | None) -> Probe:
        hops = list(way.hops) if way else [split_end(end)[0] for end in self._name(outcome.responders)]
        known = self._atlas.catalogue.recall(flow)
        if way and known and _agrees(way.hops, known.way.hops):
            hops = list(known.way.hops)
        return Probe(
            host=self._atlas.host,
            ts_ns=outcome.sent_ns,
            src_nic=flow.src_nic,
            dst=flow.dst,
            dst_nic=flow.dst_nic,
            proto=flow.proto,
            sport=flow.sport,
            dport=flow.dport,
            rtt_ns=outcome.rtt_ns,
            hops=hops,
        )

    def _path_row(self, flow: Flow, known: Remembered) -> Path:
        return Path(
            host=self._atlas.host,
            src_nic=flow.src_nic,
            dst=flow.dst,
            dst_nic=flow.dst_nic,
            proto=flow.proto,
            sport=flow.sport,
            dport=flow.dport,
            links=list(known.way.links),
            seen_ns=known.seen_ns,
            confidence=known.confidence,
        )


def _agrees(seen: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether nothing that was seen now contradicts what is remembered."""
    return len(seen) == len(known) and all(s in (SILENT, k) for s, k in zip(seen, known, strict=True))


def _describe_silence(each: Round) -> str:
    flow = each.flow
    if each.ends_at_host:
        return (
            f"{flow.dst}/{flow.dst_nic} has never answered a {flow.proto} probe; its silence is not counted as loss"
        )
    return f"the switch before {flow.dst}/{flow.dst_nic} has never answered; its silence is not counted as loss"
