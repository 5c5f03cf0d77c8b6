"""One look at one flow: which packets it takes, and what their answers say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collector.probing.answers import Arrival
from collector.probing.packets import Flow, Shot, fit_token
from collector.probing.paths import Layers

_FAR = 64  # a TTL that reaches every host of a fabric


@dataclass(frozen=True, slots=True)
class Round:
    """The packets of one look: the first is timed and counted, those behind it ask switches for their names."""

    flow: Flow
    source: str  # addresses
    target: str
    end_ttl: int  # of the first: the last switch's distance, or far enough for the host
    is_traced: bool  # whether its way is to be learnt, which takes no packet where there is no choice
    asked: tuple[int, ...] = ()  # TTLs at which the way is open

    @property
    def packets(self) -> int:
        return 1 + len(self.asked)

    @property
    def ends_at_host(self) -> bool:
        return self.end_ttl == _FAR


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look gave."""

    sent_ns: int
    rtt_ns: int | None  # None: no answer to the first packet
    responders: tuple[str, ...]  # addresses at which a TTL ran out, in the order of the way


def plan_round(flow: Flow, source: str, target: str, layers: Layers, *, is_traced: bool, is_live: bool) -> Round:
    """Return a look at a flow.

    Only a TCP packet outside of a live connection is sure of the host's answer; all others run out at the last
    switch. The cable behind that leaves no choice to a hash, so that TCP probes to the same NIC cover it.
    """
    end_ttl = _FAR if flow.proto == "tcp" and not is_live else len(layers.switches)
    return Round(flow, source, target, end_ttl, is_traced, tuple(layers.open) if is_traced else ())


def shots_of(rounds: Sequence[Round], first_token: int) -> list[Shot]:
    """Return the packets of all rounds, one after the other, each with a token that no other has."""
    places = [(each, ttl) for each in rounds for ttl in (each.end_ttl, *each.asked)]
    return [
        Shot(each.flow, each.source, each.target, ttl, fit_token(each.flow.proto, first_token + number))
        for number, (each, ttl) in enumerate(places)
    ]


def read_outcomes(rounds: Sequence[Round], arrivals: Sequence[Arrival | None]) -> Iterator[tuple[Round, Outcome]]:
    """Yield the rounds whose first packet was sent, with what came back."""
    at = 0
    for each in rounds:
        end, asked = arrivals[at], arrivals[at + 1 : at + each.packets]
        at += each.packets
        if end is not None:
            yield each, _read_outcome(each, end, asked)


def _read_outcome(each: Round, end: Arrival, asked: Sequence[Arrival | None]) -> Outcome:
    in_order = asked if each.ends_at_host else [*asked, end]
    responders = tuple(a.responder for a in in_order if a is not None and a.kind == "expired")
    is_answered = end.kind == "reached" or (end.kind == "expired" and not each.ends_at_host)
    return Outcome(end.sent_ns, end.rtt_ns if is_answered else None, responders)
