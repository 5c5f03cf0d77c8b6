"""Findings on links and switches that lose or delay probes, from probes and a topology alone."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from analyzer.finding import Finding
from analyzer.probing.flows import Flows, group_probes
from analyzer.probing.losses import Incidence, Losses, Lossy
from analyzer.probing.routes import Routes, find_routes
from lockstep.topology import TopologyIndex, split_end, switch_name
from lockstep.verdict import Side


@dataclass(frozen=True, slots=True)
class ProbingOptions:
    """When a link counts as lossy."""

    # Healthy optics lose less than one packet in ten thousand, and differ among themselves below that.
    least_loss: float = 3e-4
    # Late probes are no rare accident: a queue that fills up now and then delays one in twenty.
    least_late: float = 0.05
    # What a part must be worth beyond the logarithm of how many there are, so that one healthy fabric in a hundred
    # has a part that reaches it by chance.
    price: float = 2.3
    both_ways_price: float = 0.5  # one direction is the simpler story
    switch_price: float = 4.0  # a switch can explain what any of its links does, so it has to do so clearly better
    cap: float = 0.9  # proven on generated probes only


DEFAULT = ProbingOptions()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A link or switch that loses or delays probes."""

    component: str
    side: Side | None
    share: float  # of the probes across it, 0 to 1
    weight: float  # logarithm of how much likelier it makes what was seen
    is_late: bool  # they arrive, but late
    rivals: tuple[str, ...]
    flows: int  # that cross it
    troubled: int  # of these lost or delayed a probe


def find_lossy_links(probes: pa.Table, topology: TopologyIndex, options: ProbingOptions = DEFAULT) -> list[Finding]:
    """Return the links and switches that lose or delay probes, given rows of the table `probes`."""
    return judge_flows(group_probes(probes), topology, options)


def judge_flows(flows: Flows, topology: TopologyIndex, options: ProbingOptions = DEFAULT) -> list[Finding]:
    """Return the links and switches that lose or delay probes, given probes that `read_flows` has counted."""
    return [tell_trouble(trouble, options) for trouble in find_troubles(flows, topology, options)]


def find_troubles(flows: Flows, topology: TopologyIndex, options: ProbingOptions = DEFAULT) -> list[Trouble]:
    """Return the links and switches that lose probes, and those that delay them, the weightiest first."""
    if not len(flows) or not (flows.lost.any() or flows.late.any()):
        return []
    candidates = _Candidates(find_routes(flows, topology), options)
    lossy = candidates.search(flows.sent, flows.lost, options.least_loss)
    late = candidates.search(flows.sent - flows.lost, flows.late, options.least_late)
    return [*lossy, *(replace(trouble, is_late=True) for trouble in late)]


def tell_trouble(trouble: Trouble, options: ProbingOptions = DEFAULT) -> Finding:
    """Return the finding on a part that loses or delays probes."""
    does = "delays" if trouble.is_late else "loses"
    doubt = f"; it could as well be {' or '.join(trouble.rivals)}" if trouble.rivals else ""
    which = {None: "", "tx": ", from its first end to its second", "rx": ", from its second end to its first"}
    evidence = {
        "kind": "probes",
        "share": round(trouble.share, 6),
        "flows": trouble.flows,
        "flows_hit": trouble.troubled,
        "weight": round(trouble.weight, 1),
        "what": f"{does} {100 * trouble.share:.3g} % of probes",
    }
    return Finding(
        fault_class="comm_slow",
        component=trouble.component,
        side=trouble.side,
        likelihood=round(1 / (1 + len(trouble.rivals)) * (1 - np.exp(-max(trouble.weight, 0.0))), 4),
        reason=(
            f"{trouble.component} {does} {100 * trouble.share:.3g} % of the probes across it{which[trouble.side]}, "
            f"seen on {trouble.troubled} of {trouble.flows} flows{doubt}"
        ),
        evidence=(evidence,),
        ambiguous_with=trouble.rivals,
        cap=options.cap,
    )


class _Candidates:
    """All parts that probes cross: links in each direction and in both, and switches."""

    def __init__(self, routes: Routes, options: ProbingOptions) -> None:
        self._routes, self._options = routes, options
        ways = 2 * len(routes.links)
        switches, into = _switches_entered(routes)
        self._names: list[tuple[str, Side | None]] = [routes.name(way) for way in range(ways)]
        self._names += [(routes.name(2 * link)[0], None) for link in range(len(routes.links))]
        self._names += [(switch_name(switch), None) for switch in switches]
        crossed = 2 * len(np.unique(routes.way))  # links both ways and switches are about as many again
        self._price = np.full(len(self._names), options.price + np.log(max(crossed, 1)))
        self._price[ways:] += options.both_ways_price
        self._price[ways + len(routes.links) :] += options.switch_price
        entered = into[routes.way]
        inside = entered >= 0
        part = np.concatenate([routes.way, ways + routes.way // 2, (ways + len(routes.links) + entered)[inside]])
        flow = np.concatenate([routes.flow, routes.flow, routes.flow[inside]])
        share = np.concatenate([routes.share, routes.share, routes.share[inside]])
        self._crossed = Incidence(len(self._names), part, flow, share)

    def search(self, sent: np.ndarray, hit: np.ndarray, least_share: float) -> list[Trouble]:
        """Return the parts at which more than that share of what was sent is hit."""
        if not hit.any():
            return []
        found = Losses(self._crossed, sent, hit, self._price).find(-np.log1p(-least_share))
        both = self._joined(found)
        return [self._trouble(each, side, hit) for each, side in both]

    def _joined(self, found: list[Lossy]) -> list[tuple[Lossy, Side | None]]:
        """Return what was found, two directions of one link as one."""
        joined: dict[str, tuple[Lossy, Side | None]] = {}
        for each in found:
            name, side = self._names[each.part]
            joined[name] = (joined[name][0], None) if name in joined else (each, side)
        return list(joined.values())

    def _trouble(self, found: Lossy, side: Side | None, hit: np.ndarray) -> Trouble:
        name = self._names[found.part][0]
        flows = np.unique(self._crossed.flow[self._crossed.part == found.part])
        rivals = dict.fromkeys(self._names[part][0] for part in found.rivals)
        return Trouble(
            component=name,
            side=side,
            share=float(-np.expm1(-found.rate)),
            weight=found.gain,
            is_late=False,
            rivals=tuple(rival for rival in rivals if rival != name),
            flows=len(flows),
            troubled=int((hit[flows] > 0).sum()),
        )


def _switches_entered(routes: Routes) -> tuple[list[str], np.ndarray]:
    """Return the nodes that links lead to, without hosts, and the number of that of each directed link, or -1."""
    far = [end for link in routes.links for end in (link.b, link.a)]
    plugs = {end for link in routes.links for end in (link.a, link.b) if routes.is_plug(end)}
    nodes = sorted({split_end(end)[0] for end in far if end not in plugs})
    number = {node: place for place, node in enumerate(nodes)}
    into = [-1 if end in plugs else number[split_end(end)[0]] for end in far]
    return nodes, np.array(into, np.int64)
