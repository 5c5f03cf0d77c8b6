"""A NIC that is slow because it carries what a dead one beside it no longer does is not the one to repair."""

from dataclasses import replace

from analyzer.faults.naming import Fault
from analyzer.signs.signs import Signs
from lockstep.topology import split_end


def pass_on_to_dead_port(fault: Fault, signs: Signs) -> Fault:
    """Return the fault of the NIC of the same host that has no carrier, where a slow one has it as an excuse."""
    if fault.kind != "nic" or fault.component in signs.down:
        return fault
    host, _ = split_end(fault.component.partition(":")[2])
    dead = sorted(name for name in signs.down if name.startswith(f"nic:{host}/"))
    if len(dead) != 1:  # of several nobody knows whose traffic it is
        return fault
    named = (fault.component, *fault.ambiguous_with)
    others = tuple(name for name in named if name != dead[0])
    return replace(fault, component=dead[0], side=None, ambiguous_with=others, moved_to=fault.component)
