"""How parts are named, and which names speak of the same piece of hardware."""

from lockstep.errors import BadInput
from lockstep.words import kind_of

KINDS = frozenset({"host", "gpu", "nic", "link", "switch", "port", "nvlink", "pcie"})
_LONGEST = 300


def check_component(component: str) -> str:
    """Return the name itself, or raise BadInput where it is none of a piece of hardware."""
    kind, colon, name = component.partition(":")
    if kind not in KINDS or not colon or not name or len(component) > _LONGEST or "\0" in component:
        kinds = ", ".join(sorted(KINDS))
        raise BadInput(f"{component[:100]!r} is no name of a part: it is kind:name, and the kinds are {kinds}")
    return component


def ends_of(component: str) -> tuple[str, ...]:
    """Return the places that a part's name speaks of.

    >>> ends_of("link:h3/eth1--leaf1/12")
    ('h3/eth1', 'leaf1/12')
    """
    return tuple(component.partition(":")[2].split("--"))


def nodes_of(component: str) -> frozenset[str]:
    """Return the hosts and switches that a part belongs to; none for a job or a rank."""
    is_hardware = kind_of(component) in KINDS
    return frozenset(end.partition("/")[0] for end in ends_of(component)) if is_hardware else frozenset()


def concerns(part: str, component: str) -> bool:
    """Return whether what is said of a component belongs to the history of a part.

    A host has the history of all its parts, and so has a switch; a NIC or a port that of its cable.

    >>> concerns("host:h3", "nic:h3/eth1"), concerns("nic:h3/eth1", "link:h3/eth1--leaf1")
    (True, True)
    >>> concerns("gpu:h3/1", "host:h3")
    False
    """
    if part == component:
        return True
    kind, ends = kind_of(part), ends_of(part)
    if kind in ("host", "switch"):
        return ends[0] in nodes_of(component)
    return kind in ("nic", "port") and kind_of(component) in ("link", "nic", "port") and ends[0] in ends_of(component)
