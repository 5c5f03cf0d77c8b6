"""What the name of a part says: which node would be drained for it, and whether traffic can go around it."""

_OF_ONE_HOST = ("nic", "gpu", "host", "nvlink", "pcie")


def node_of(component: str, hosts: frozenset[str]) -> str | None:
    """Return the host that would be taken out of service for a part; None where that is no single host.

    >>> node_of("nic:h3/eth1", frozenset({"h3"})), node_of("link:h3/eth1--leaf1", frozenset({"h3"}))
    ('h3', 'h3')
    >>> node_of("link:leaf1--spine2", frozenset({"h3"})) is None
    True
    """
    kind, _, name = component.partition(":")
    if kind in _OF_ONE_HOST:
        return name.partition("/")[0] or None
    if kind == "link":
        ends = {end.partition("/")[0] for end in name.split("--")} & hosts
        return ends.pop() if len(ends) == 1 else None
    return None


def is_in_the_fabric(component: str, hosts: frozenset[str]) -> bool:
    """Return whether a part lies between switches, so that other ways lead around it."""
    kind, _, name = component.partition(":")
    if kind == "switch":
        return True
    return kind == "link" and not {end.partition("/")[0] for end in name.split("--")} & hosts


def is_hardware(component: str) -> bool:
    """Return whether a part is something that can be replaced; ranks and jobs are not."""
    return component.partition(":")[0] in (*_OF_ONE_HOST, "link", "switch")
