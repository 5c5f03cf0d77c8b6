"""How much of its rate each link still carries, and when that changes: down at once, up again only after a while.

Evidence comes from verdicts, from the ports at both ends of a link, and from what it carries beside our plan
(traffic.py). Each source counts with what it said last, and the worst source decides. A link that gets worse is
believed at once; one that gets better must stay so for a time that doubles with every relapse, so a link that flaps
costs O(log) changes.

>>> health, changes = LinkHealth().observe([Evidence(0, "leaf0--spine0", "port leaf0", 0.0, "no carrier")], now_ns=0)
>>> health.weights, changes[0].reason
({'leaf0--spine0': 0.0}, 'no carrier')
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isnan
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.topology import Link, Topology, link_name, split_end
from lockstep.verdict import Verdict

_ALL = 1.0
_LEAST_CONFIDENCE = 0.5  # below, a verdict is more likely wrong than right
UNKNOWN_SHARE = 0.5  # of a part that is slow, nobody says how much: with half, a plan avoids it and does not starve
# A lost packet is sent again with all that were under way behind it: 400 Gb/s x 10 us are 128 packets of 4 KB.
RESENT, FRAME_BYTES = 128, 4096
BELOW_SHARE = 0.9  # rates are negotiated in steps of a half or a quarter


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """What one source says of one link."""

    ts_ns: int
    link: str  # id in the topology
    source: str  # who says so; what the same source says later takes its place
    weight: float  # share of the link's rate that it carries; 1: all is well
    reason: str  # a sentence
    hold_s: float = 0.0  # for so long it must be so before it is believed, where that is more than usual


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """When a change is worth a plan."""

    least_step: float = 0.1  # a plan that is off by less on one link gains less than it moves
    hold_s: float = 10.0  # a carrier that came back is trusted after ten looks at its counters, one a second
    most_hold_s: float = 3600.0  # a link that flaps for hours is looked at once an hour; then a person has come


@dataclass(frozen=True, slots=True)
class Change:
    """A link that counts for more or less from now on."""

    ts_ns: int
    link: str
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class _State:
    """One link that was ill once."""

    said: Mapping[str, Evidence] = field(default_factory=dict)  # by source
    weight: float = _ALL  # that plans are made with
    relapses: int = 0
    better_since_ns: int | None = None
    risen_ns: int | None = None  # when it last came back

    @property
    def worst(self) -> Evidence | None:
        """Return the evidence that decides; the reason makes the choice among equals repeatable."""
        return min(self.said.values(), key=lambda said: (said.weight, said.ts_ns, said.source), default=None)


@dataclass(frozen=True)
class LinkHealth:
    """What is thought of all links at a moment; links of which nothing bad is known are not kept."""

    options: HealthOptions = field(default_factory=HealthOptions)
    links: Mapping[str, _State] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        """Return the share of its rate that each ill link carries; all others carry all of theirs."""
        return {link: state.weight for link, state in sorted(self.links.items()) if state.weight < _ALL}

    def observe(self, evidence: Iterable[Evidence], now_ns: int) -> "tuple[LinkHealth, list[Change]]":
        """Return what is thought after some evidence, and what changed; the order of the evidence does not matter.

        Call it without evidence, too: a link that was quiet for long enough comes back by itself.
        """
        links, changes = dict(self.links), []
        in_time = sorted(map(_checked, evidence))
        for ts_ns, together in groupby(in_time, key=lambda said: said.ts_ns):
            by_link: dict[str, list[Evidence]] = defaultdict(list)
            for said in together:
                by_link[said.link].append(said)
            for link, told in by_link.items():
                links[link] = _hear(links.get(link, _State()), told)
                changes += self._settle(links, link, ts_ns)
        for link in list(links):
            changes += self._settle(links, link, now_ns)
        long_ago_ns = now_ns - int(self.options.most_hold_s * NS_PER_S)
        kept = {link: _forget(state, long_ago_ns) for link, state in links.items()}
        return LinkHealth(self.options, {link: state for link, state in kept.items() if state}), changes

    def _settle(self, links: dict[str, _State], link: str, now_ns: int) -> list[Change]:
        """Bring one link's weight to what its sources say, where it is time to."""
        state = links[link]
        target = state.worst.weight if state.worst else _ALL
        if self._is_drop(state.weight, target):
            links[link] = self._drop(state, target, now_ns)
        elif self._is_rise(state.weight, target):
            links[link] = self._rise(state, target, now_ns)
        else:
            links[link] = replace(state, better_since_ns=None)
        after = links[link].weight
        if after == state.weight:
            return []
        return [Change(now_ns, link, state.weight, after, self._explain(state, after, now_ns))]

    def _is_drop(self, weight: float, target: float) -> bool:
        return weight - target >= self.options.least_step or (target == 0.0 < weight)

    def _is_rise(self, weight: float, target: float) -> bool:
        return target - weight >= self.options.least_step or (target == _ALL > weight)

    def _drop(self, state: _State, target: float, now_ns: int) -> _State:
        relapses = state.relapses
        if state.risen_ns is not None:
            was_well_ns = now_ns - state.risen_ns
            is_forgiven = state.weight == _ALL and was_well_ns >= self.options.most_hold_s * NS_PER_S
            relapses = 0 if is_forgiven else relapses + 1
        return replace(state, weight=target, relapses=relapses, better_since_ns=None, risen_ns=None)

    def _rise(self, state: _State, target: float, now_ns: int) -> _State:
        since_ns = now_ns if state.better_since_ns is None else state.better_since_ns
        if now_ns - since_ns < self._hold_ns(state):
            return replace(state, better_since_ns=since_ns)
        return replace(state, weight=target, better_since_ns=None, risen_ns=now_ns)

    def _hold_ns(self, state: _State) -> float:
        least_s = max([self.options.hold_s, *(said.hold_s for said in state.said.values())])
        doubled = least_s * 2.0 ** min(state.relapses, 64)  # 2^64 s are longer than any bound
        return min(doubled, self.options.most_hold_s) * NS_PER_S

    def _explain(self, state: _State, after: float, now_ns: int) -> str:
        said = state.worst.reason if state.worst else "nobody complains any more"
        if after < state.weight:
            return said
        held_s = (now_ns - (now_ns if state.better_since_ns is None else state.better_since_ns)) / NS_PER_S
        relapses = f", after {state.relapses} relapses" if state.relapses else ""
        return f"better for {held_s:g} s{relapses}: {said}"


def _checked(said: Evidence) -> Evidence:
    if isnan(said.weight):
        raise BadInput(f"{said.source} says of {said.link} that it carries a share of NaN, but shares are 0 to 1")
    return replace(said, weight=min(max(said.weight, 0.0), _ALL))


def _hear(state: _State, told: Iterable[Evidence]) -> _State:
    """Take in what sources say: the newest counts, and of one moment the worst."""
    said = dict(state.said)
    for new in told:
        old = said.get(new.source)
        if old is None or (new.ts_ns, -new.weight, new.reason) > (old.ts_ns, -old.weight, old.reason):
            said[new.source] = new
    return replace(state, said=said)


def _forget(state: _State, long_ago_ns: int) -> _State | None:
    """Leave out sources that were content long ago, and a link that has been well for as long."""
    said = {source: told for source, told in state.said.items() if told.weight < _ALL or told.ts_ns > long_ago_ns}
    is_well = state.weight == _ALL and (state.risen_ns is None or state.risen_ns <= long_ago_ns)
    if is_well and all(told.weight == _ALL for told in said.values()):
        return None
    return replace(state, said=said)


class Parts:
    """The links of a topology, by all the names under which evidence speaks of them."""

    def __init__(self, topology: Topology) -> None:
        self._links: dict[str, list[Link]] = defaultdict(list)
        self._at: dict[tuple[str, str], Link] = {}
        for link in topology.links:
            self._links[link_name(link)].append(link)
            for near, far in ((link.a, link.b), (link.b, link.a)):
                node, port = split_end(near)
                self._links[f"nic:{near}"].append(link)
                self._links[f"switch:{node}"].append(link)
                self._at[node, port or far] = link  # where no port is named, it goes by what it leads to

    def links_of(self, component: str) -> list[Link]:
        """Return the links that carry less when a part is ill; none for what is no part of the fabric."""
        return self._links.get(component, [])

    def link_at(self, node: str, port: str) -> Link | None:
        """Return the cable in a NIC or in a port of a switch."""
        return self._at.get((node, port))


def judge_verdict(verdict: Verdict, parts: Parts, healed_ns: int | None = None) -> list[Evidence]:
    """Return what a verdict says of links: of all of a switch, of a NIC's cable; `healed_ns`: it is over since.

    Parts that it cannot tell from the one it names lose half as much: a road around all of them costs little.
    """
    if verdict.confidence < _LEAST_CONFIDENCE or verdict.fault_class not in ("comm_slow", "comm_hang", "crash"):
        return []
    share, ts_ns = _find_share(verdict), verdict.last_seen_ns
    told = [(verdict.component, share, verdict.reason)]
    told += [
        (rival, (share + _ALL) / 2, f"it could as well be {rival}: {verdict.reason}")
        for rival in verdict.ambiguous_with
    ]
    if healed_ns is not None:
        ts_ns, told = healed_ns, [(part, _ALL, f"{part} has healed") for part, _, _ in told]
    return [
        Evidence(ts_ns, link.id, f"verdict {verdict.id}", left, reason)
        for part, left, reason in told
        for link in parts.links_of(part)
    ]


def _find_share(verdict: Verdict) -> float:
    """Return the share of its rate that a part has left: by its own wire times, else by what it costs the job.

    The second is an upper bound: a step is not all communication, so its wires have slowed down more than it has.
    """
    if verdict.fault_class != "comm_slow":
        return 0.0
    wires = [wire for each in verdict.evidence for wire in each.get("slow_wires", ())]
    ratios = [float(wire["ratio"]) for wire in wires if wire.get("ratio")]
    lost = [float(each["share"]) for each in verdict.evidence if each.get("kind") == "probes"]
    if ratios:
        return 1 / max(median(ratios), _ALL)
    if lost:
        return 1 / (1 + RESENT * max(lost))
    ratio = verdict.impact.step_time_ratio
    return 1 / ratio if ratio and ratio > 1 else UNKNOWN_SHARE


def judge_ports(readings: pa.Table, parts: Parts, health: LinkHealth) -> list[Evidence]:
    """Return what ports say of their links: all that are ill, and the others of links that are known to be ill.

    `readings`: node, port, ts_ns, up, speed_mbps, and by how much bytes and errors grew since the reading before.
    """
    ends = zip(readings["node"].to_pylist(), readings["port"].to_pylist(), strict=True)
    links = [parts.link_at(*end) for end in ends]
    weight = _weigh_ports(readings, np.array([link.gbps * 1e3 if link else np.inf for link in links]))
    told = []
    for number, (link, left) in enumerate(zip(links, weight.tolist(), strict=True)):
        if link and (left < _ALL or link.id in health.links):
            row = readings.slice(number, 1).to_pylist()[0]
            told.append(Evidence(row["ts_ns"], link.id, f"port {row['node']}/{row['port']}", left, _say(row, left)))
    return told


def _weigh_ports(readings: pa.Table, nominal_mbps: np.ndarray) -> np.ndarray:
    """Return what each port leaves of its link's rate: nothing without carrier, less when slow or breaking frames."""
    mbps = np.asarray(pc.fill_null(readings["speed_mbps"], 0)).astype(np.float64)
    part = np.divide(mbps, nominal_mbps, out=np.ones(len(mbps)), where=mbps > 0)
    frames = np.maximum(np.asarray(pc.fill_null(readings["bytes"], 0)) / FRAME_BYTES, 1.0)
    broken = np.clip(np.asarray(pc.fill_null(readings["errors"], 0)) / frames, 0.0, 1.0)
    left = np.where(part < BELOW_SHARE, part, _ALL) / (1 + RESENT * broken)
    return np.where(np.asarray(readings["up"]), left, 0.0)


def _say(row: Mapping[str, object], left: float) -> str:
    end = f"{row['node']}/{row['port']}"
    if not row["up"]:
        return f"{end} has no carrier"
    return f"{end} is well" if left == _ALL else f"{end} carries {left:.0%} by its speed and errors"
