"""What probes of the last half minute say of links and switches, as signs for them."""

from collections.abc import Iterator

from analyzer.context import Context
from analyzer.probing.flows import read_flows
from analyzer.probing.links import ProbingOptions, Trouble, find_troubles, tell_trouble
from analyzer.signs.signs import MOST, Sign
from analyzer.windows import Window
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

BACK_NS = 25 * NS_PER_S  # a host probes once a second, so that a look alone holds a handful per link
# A sign only tilts a choice that slow wires force on us, so it may be had for less than a verdict of its own.
_OPTIONS = ProbingOptions(price=-2.0)


def read_probes(store: Store, context: Context) -> list[Trouble]:
    """Return the links and switches that lose or delay probes; none without a topology."""
    if context.topology is None:
        return []
    flows = read_flows(store, Window(context.window.start_ns - BACK_NS, context.window.end_ns))
    return find_troubles(flows, context.topology, _OPTIONS)


def judge_probes(troubles: list[Trouble]) -> Iterator[Sign]:
    """Yield a sign for each link or switch in trouble, shared with those that cannot be told from it."""
    for trouble in troubles:
        weight = min(trouble.weight, MOST) / (1 + len(trouble.rivals))
        evidence = tell_trouble(trouble).evidence[0]
        yield Sign(trouble.component, weight, evidence, trouble.side)
        yield from (Sign(rival, weight, evidence) for rival in trouble.rivals)
