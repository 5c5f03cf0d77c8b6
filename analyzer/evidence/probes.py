"""What probes of the last half minute say of links and switches, as evidence for them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzer.evidence.observations import MOST, Observation
from analyzer.evidence.probe_routes import Flows, Routes, find_routes, read_flows
from analyzer.windows.window import Context, Finding, Window
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex, split_end, switch_name
from lockstep.verdict import Side

MOST_PARTS = 64  # bounds the time; more links at fault at once is a fabric in ruins
_RATES = np.geomspace(1e-4, 8.0, 24)  # tried for each part; from one in ten thousand to everything
_LEAST_RATE = 1e-9  # of what is lost everywhere: no probe was lost yet does not mean that none will be
_FITS = 30  # rounds of fitting all rates; they settle in a dozen


@dataclass(frozen=True)
class Incidence:
    """Which flows cross which parts, an entry each."""

    parts: int
    part: np.ndarray
    flow: np.ndarray
    share: np.ndarray


@dataclass(frozen=True, slots=True)
class Lossy:
    """A part that loses probes."""

    part: int
    rate: float  # -log(1 - share lost)
    gain: float  # by how much it makes the losses likelier beside all others, its price deducted
    rivals: dict[int, float]  # what other parts would gain in its place, where that comes close


class Losses:
    """Weighs parts by what was lost on the flows across them."""

    def __init__(self, crossed: Incidence, sent: np.ndarray, lost: np.ndarray, price: np.ndarray) -> None:
        self._price = price
        survived = sent - lost
        self._survived = np.bincount(
            crossed.part, weights=crossed.share * survived[crossed.flow], minlength=crossed.parts
        )
        self._all_survived = float(survived.sum())
        troubled = np.flatnonzero(lost > 0)
        self._lost = lost[troubled]
        number = np.full(len(lost), -1)
        number[troubled] = np.arange(len(troubled))
        kept = np.flatnonzero(number[crossed.flow] >= 0)
        kept = kept[np.argsort(crossed.part[kept], kind="stable")]
        self._part, self._share = crossed.part[kept], crossed.share[kept]
        self._flow = number[crossed.flow[kept]]
        self._bounds = np.searchsorted(self._part, np.arange(crossed.parts + 1))

    def find(self, least_rate: float) -> list[Lossy]:
        """Return the parts that lose more than that, the weightiest first."""
        rates: dict[int, float] = {}
        everywhere = self._fit(rates)
        while len(rates) < MOST_PARTS:
            worth, best_rate = self._worth(self._along(rates, everywhere))
            worth[list(rates)] = -np.inf
            best = int(worth.argmax())
            if worth[best] <= 0:
                break
            rates[best] = float(best_rate[best])
            everywhere = self._fit(rates)
        kept = self._settle(rates)
        found = [self._judge(part, kept) for part in kept if kept[part] >= least_rate]
        return sorted(found, key=lambda each: -each.gain)

    def _settle(self, rates: dict[int, float]) -> dict[int, float]:
        """Return the parts that are each worth their price beside the others, or what is better in their place."""
        for part in list(rates):
            others = {each: rate for each, rate in rates.items() if each != part}
            everywhere = self._fit(others)
            worth, best_rate = self._worth(self._along(others, everywhere))
            best = int(worth.argmax())
            if worth[best] <= 0:
                rates = others
            elif best != part and best not in others and worth[best] > worth[part]:
                rates = {**others, best: float(best_rate[best])}
        self._fit(rates)
        return rates

    def _judge(self, part: int, rates: dict[int, float]) -> Lossy:
        """Return a part with its rivals: as good in its place, and of no more use beside it."""
        others = {each: rate for each, rate in rates.items() if each != part}
        without, _ = self._worth(self._along(others, self._fit(others)))
        beside, _ = self._worth(self._along(rates, self._fit(rates)))
        is_close = without > without[part] - np.log(10.0)
        is_same = beside + self._price < 0.5 * (without + self._price)
        rivals = {each: float(without[each]) for each in np.flatnonzero(is_close & is_same).tolist()}
        return Lossy(part, rates[part], float(without[part]), {n: v for n, v in rivals.items() if n not in rates})

    def _worth(self, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what each part is worth at the rate that fits it best, and that rate."""
        gains = np.array([self._gain(along, rate) for rate in _RATES])
        best = gains.argmax(axis=0)
        return gains[best, np.arange(gains.shape[1])] - self._price, _RATES[best]

    def _gain(self, along: np.ndarray, rate: float) -> np.ndarray:
        """Return by how much each part at this rate would make the losses likelier (logarithm)."""
        before = along[self._flow]
        change = self._lost[self._flow] * (_log_lost(before + self._share * rate) - _log_lost(before))
        return np.bincount(self._part, weights=change, minlength=len(self._price)) - self._survived * rate

    def _along(self, rates: dict[int, float], everywhere: float) -> np.ndarray:
        """Return the rate along each flow that lost something."""
        along = np.full(len(self._lost), everywhere)
        for part, rate in rates.items():
            mine = slice(self._bounds[part], self._bounds[part + 1])
            np.add.at(along, self._flow[mine], self._share[mine] * rate)
        return along

    def _fit(self, rates: dict[int, float]) -> float:
        """Fit the rates of all parts in place, and return that of everything else.

        Each round multiplies a rate by what was lost over what it would lose, which never makes the fit worse.
        """
        everywhere = max(float(self._lost.sum()) / max(self._all_survived, 1.0) / 2, _LEAST_RATE)
        for _ in range(_FITS):
            along = self._along(rates, everywhere)
            pull = self._lost / np.expm1(along)
            everywhere = max(everywhere * float(pull.sum()) / max(self._all_survived, 1.0), _LEAST_RATE)
            for part in rates:
                mine = slice(self._bounds[part], self._bounds[part + 1])
                mean = float((self._share[mine] * pull[self._flow[mine]]).sum()) / max(self._survived[part], 1e-3)
                rates[part] = min(max(rates[part] * mean, _LEAST_RATE), float(_RATES[-1]))
        return everywhere


def _log_lost(along: np.ndarray) -> np.ndarray:
    logarithm: np.ndarray = np.log(-np.expm1(-along))
    return logarithm


@dataclass(frozen=True, slots=True)
class ProbingOptions:
    """When a link counts as lossy."""

    # Healthy optics lose less than one packet in ten thousand, and differ among themselves below that.
    least_loss: float = 3e-4
    # Late probes are no rare accident: a queue that fills up now and then delays one in twenty.
    least_delayed: float = 0.05
    # What a part must be worth beyond the logarithm of how many there are, so that one healthy fabric in a hundred
    # has a part that reaches it by chance.
    price: float = 2.3
    both_directions_price: float = 0.5  # one direction is the simpler scenario
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
    is_delayed: bool  # they arrive, but late
    rivals: tuple[str, ...]
    flows: int  # that cross it
    troubled: int  # of these lost or delayed a probe


def judge_flows(flows: Flows, topology: TopologyIndex, options: ProbingOptions = DEFAULT) -> list[Finding]:
    """Return the links and switches that lose or delay probes, given probes that `read_flows` has counted."""
    return [report_trouble(trouble, options) for trouble in find_troubles(flows, topology, options)]


def find_troubles(flows: Flows, topology: TopologyIndex, options: ProbingOptions = DEFAULT) -> list[Trouble]:
    """Return the links and switches that lose probes, and those that delay them, the weightiest first."""
    if not len(flows) or not (flows.lost.any() or flows.delayed.any()):
        return []
    candidates = _Candidates(find_routes(flows, topology), options)
    lossy = candidates.search(flows.sent, flows.lost, options.least_loss)
    delayed = candidates.search(flows.sent - flows.lost, flows.delayed, options.least_delayed)
    return [*lossy, *(replace(trouble, is_delayed=True) for trouble in delayed)]


def report_trouble(trouble: Trouble, options: ProbingOptions = DEFAULT) -> Finding:
    """Return the finding on a part that loses or delays probes."""
    does = "delays" if trouble.is_delayed else "loses"
    doubt = f"; cannot be told apart from {' or '.join(trouble.rivals)}" if trouble.rivals else ""
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
        directed_links = 2 * len(routes.links)
        switches, into = _switches_entered(routes)
        self._names: list[tuple[str, Side | None]] = [
            routes.name(directed_link) for directed_link in range(directed_links)
        ]
        self._names += [(routes.name(2 * link)[0], None) for link in range(len(routes.links))]
        self._names += [(switch_name(switch), None) for switch in switches]
        crossed = 2 * len(np.unique(routes.directed_link))  # links both ways and switches are about as many again
        self._price = np.full(len(self._names), options.price + np.log(max(crossed, 1)))
        self._price[directed_links:] += options.both_directions_price
        self._price[directed_links + len(routes.links) :] += options.switch_price
        entered = into[routes.directed_link]
        inside = entered >= 0
        part = np.concatenate(
            [
                routes.directed_link,
                directed_links + routes.directed_link // 2,
                (directed_links + len(routes.links) + entered)[inside],
            ]
        )
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
            is_delayed=False,
            rivals=tuple(rival for rival in rivals if rival != name),
            flows=len(flows),
            troubled=int((hit[flows] > 0).sum()),
        )


def _switches_entered(routes: Routes) -> tuple[list[str], np.ndarray]:
    """Return the nodes that links lead to, without hosts, and the number of that of each directed link, or -1."""
    far = [end for link in routes.links for end in (link.b, link.a)]
    plugs = {end for link in routes.links for end in (link.a, link.b) if routes.is_plug(end)}
    nodes = sorted({split_end(end)[0] for end in far if end not in plugs})
    number = {node: index for index, node in enumerate(nodes)}
    into = [-1 if end in plugs else number[split_end(end)[0]] for end in far]
    return nodes, np.array(into, np.int64)


BACK_NS = 25 * NS_PER_S  # a host probes once a second, so that an evaluation alone holds a handful per link
# Evidence only tilts a choice that slow pairs force on us, so it may be had for less than a verdict of its own.
_OPTIONS = ProbingOptions(price=-2.0)


def read_probes(store: Store, context: Context) -> list[Trouble]:
    """Return the links and switches that lose or delay probes; none without a topology."""
    if context.topology is None:
        return []
    flows = read_flows(store, Window(context.window.start_ns - BACK_NS, context.window.end_ns))
    return find_troubles(flows, context.topology, _OPTIONS)


def judge_probes(troubles: list[Trouble]) -> Iterator[Observation]:
    """Yield evidence for each link or switch in trouble, shared with those that cannot be told from it."""
    for trouble in troubles:
        weight = min(trouble.weight, MOST) / (1 + len(trouble.rivals))
        evidence = report_trouble(trouble).evidence[0]
        yield Observation(trouble.component, weight, evidence, trouble.side)
        yield from (Observation(rival, weight, evidence) for rival in trouble.rivals)
