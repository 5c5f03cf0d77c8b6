"""Reads all signs of one look: NICs, switch ports, GPUs, events and probes."""

from itertools import chain

from analyzer.context import Context
from analyzer.signs.events import find_broken, judge_events, read_events
from analyzer.signs.health import find_uncorrected, judge_health, read_health
from analyzer.signs.nics import judge_nics, read_nics
from analyzer.signs.ports import judge_ports, read_ports
from analyzer.signs.probes import judge_probes, read_probes
from analyzer.signs.signs import NO_SIGNS, Signs, gather_signs
from lockstep.store.store import Store


def read_signs(store: Store, context: Context) -> Signs:
    """Return what counters, health, events and probes say of the parts of a job in a look."""
    if not context.roster.hosts:
        return NO_SIGNS
    health, events = read_health(store, context), read_events(store, context)
    ports = read_ports(store, context)
    return gather_signs(
        chain(
            judge_nics(read_nics(store, context), context.topology),
            judge_ports(ports, context.topology) if ports is not None and context.topology else (),
            judge_health(health),
            judge_events(events),
            judge_probes(read_probes(store, context)),
        ),
        chain(find_uncorrected(health), find_broken(events)),
    )
