"""How much of its rate each link still carries, and when that changes: down at once, up again only after a while.

Counters of ports are judged by the analyzer alone: what is known here comes from its verdicts, from the published
topology (a link that is down), and from what it carries beside our plan (traffic.py). Each source counts with what
it said last, and the worst source decides. A link that gets worse is believed at once; one that gets better must stay
so for a time that doubles with every relapse, so a link that flaps costs O(log) changes.

>>> health, changes = LinkHealth().observe([Evidence(0, "leaf0--spine0", "topology", 0.0, "it is down")], now_ns=0)
>>> health.weights, changes[0].reason
({'leaf0--spine0': 0.0}, 'it is down')
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isnan
from statistics import median

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.topology import Topology, link_name, split_end
from lockstep.verdict import Verdict

_ALL = 1.0
_LEAST_CONFIDENCE = 0.5  # below, a verdict is more likely wrong than right
_UNKNOWN_SHARE = 0.5  # of a part that is slow, nobody says how much: with half, a plan avoids it and does not starve
# A lost packet is sent again with all that were under way behind it: 400 Gb/s x 10 us are 128 packets of 4 KB.
_RESENT = 128


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

    evidence: Mapping[str, Evidence] = field(default_factory=dict)  # by source
    weight: float = _ALL  # that plans are made with
    relapses: int = 0
    better_since_ns: int | None = None
    risen_ns: int | None = None  # when it last came back

    @property
    def worst(self) -> Evidence | None:
        """Return the evidence that decides; the reason makes the choice among equals repeatable."""
        return min(self.evidence.values(), key=lambda each: (each.weight, each.ts_ns, each.source), default=None)


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
        for ts_ns, together in groupby(in_time, key=lambda each: each.ts_ns):
            by_link: dict[str, list[Evidence]] = defaultdict(list)
            for each in together:
                by_link[each.link].append(each)
            for link, reported in by_link.items():
                links[link] = _record(links.get(link, _State()), reported)
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
        if state.weight - target >= self.options.least_step or (target == 0.0 < state.weight):
            links[link] = self._drop(state, target, now_ns)
        elif target - state.weight >= self.options.least_step or (target == _ALL > state.weight):
            links[link] = self._rise(state, target, now_ns)
        else:
            links[link] = replace(state, better_since_ns=None)
        after = links[link].weight
        if after == state.weight:
            return []
        return [Change(now_ns, link, state.weight, after, self._explain(state, after, now_ns))]

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
        least_s = max([self.options.hold_s, *(each.hold_s for each in state.evidence.values())])
        doubled = least_s * 2.0 ** min(state.relapses, 64)  # 2^64 s are longer than any bound
        return min(doubled, self.options.most_hold_s) * NS_PER_S

    def _explain(self, state: _State, after: float, now_ns: int) -> str:
        reason = state.worst.reason if state.worst else "nobody complains any more"
        if after < state.weight:
            return reason
        held_s = (now_ns - (now_ns if state.better_since_ns is None else state.better_since_ns)) / NS_PER_S
        relapses = f", after {state.relapses} relapses" if state.relapses else ""
        return f"better for {held_s:g} s{relapses}: {reason}"


def _checked(evidence: Evidence) -> Evidence:
    if isnan(evidence.weight):
        who, link = evidence.source, evidence.link
        raise BadInput(f"{who} says of {link} that it carries a share of NaN, but shares are 0 to 1")
    return replace(evidence, weight=min(max(evidence.weight, 0.0), _ALL))


def _record(state: _State, reported: Iterable[Evidence]) -> _State:
    """Take in what sources say: the newest counts, and of one moment the worst."""
    newest = dict(state.evidence)
    for new in reported:
        old = newest.get(new.source)
        if old is None or (new.ts_ns, -new.weight, new.reason) > (old.ts_ns, -old.weight, old.reason):
            newest[new.source] = new
    return replace(state, evidence=newest)


def _forget(state: _State, long_ago_ns: int) -> _State | None:
    """Leave out sources that were content long ago, and a link that has been well for as long."""
    kept = {source: each for source, each in state.evidence.items() if each.weight < _ALL or each.ts_ns > long_ago_ns}
    is_well = state.weight == _ALL and (state.risen_ns is None or state.risen_ns <= long_ago_ns)
    if is_well and all(each.weight == _ALL for each in kept.values()):
        return None
    return replace(state, evidence=kept)


def name_parts(topology: Topology) -> dict[str, list[str]]:
    """Return the links that carry less when a part is ill, by all the names under which evidence speaks of it."""
    links: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        links[link_name(link)].append(link.id)
        for end in (link.a, link.b):
            links[f"nic:{end}"].append(link.id)
            links[f"switch:{split_end(end)[0]}"].append(link.id)
    return dict(links)


def judge_verdict(verdict: Verdict, parts: Mapping[str, list[str]], healed_ns: int | None = None) -> list[Evidence]:
    """Return what a verdict says of links: of all of a switch, of a NIC's cable; `healed_ns`: it is over since.

    Parts that it cannot tell from the one it names lose half as much: a path around all of them costs little.
    """
    if verdict.confidence < _LEAST_CONFIDENCE or verdict.fault_class not in ("comm_slow", "comm_hang", "crash"):
        return []
    share, ts_ns = _find_share(verdict), verdict.last_seen_ns
    parts_left = [(verdict.component, share, verdict.reason)]
    parts_left += [
        (rival, (share + _ALL) / 2, f"{rival} cannot be told apart from it: {verdict.reason}")
        for rival in verdict.ambiguous_with
    ]
    if healed_ns is not None:
        ts_ns, parts_left = healed_ns, [(part, _ALL, f"{part} has healed") for part, _, _ in parts_left]
    return [
        Evidence(ts_ns, link, f"verdict {verdict.id}", left, reason)
        for part, left, reason in parts_left
        for link in parts.get(part, [])
    ]


def judge_topology(topology: Topology, before: Topology, now_ns: int) -> list[Evidence]:
    """Return what a published topology says of links: those that are down, and those that are up again."""
    was_up = {link.id: link.up for link in before.links}
    return [
        Evidence(now_ns, link.id, "topology", float(link.up), f"the topology has it {'up' if link.up else 'down'}")
        for link in topology.links
        if not link.up or not was_up.get(link.id, True)
    ]


def _find_share(verdict: Verdict) -> float:
    """Return the share of its rate that a part has left: by its own wire times, else by what it costs the job.

    The second is an upper bound: a step is not all communication, so its wires have slowed down more than it has.
    """
    if verdict.fault_class != "comm_slow":
        return 0.0
    pairs = [pair for each in verdict.evidence for pair in each.get("slow_pairs", ())]
    ratios = [float(pair["ratio"]) for pair in pairs if pair.get("ratio")]
    lost = [float(each["share"]) for each in verdict.evidence if each.get("kind") == "probes"]
    if ratios:
        return 1 / max(median(ratios), _ALL)
    if lost:
        return 1 / (1 + _RESENT * max(lost))
    ratio = verdict.impact.step_time_ratio
    return 1 / ratio if ratio and ratio > 1 else _UNKNOWN_SHARE
