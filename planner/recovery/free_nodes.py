"""Which nodes lie idle as far as Lockstep knows: those that came back from isolation, and those that jobs have left.

A controller lists nodes, not who is on them; a job without telemetry may run on any. So a node is free only when it
was seen to become so, and not for long: whoever else waits for nodes may have taken it by then. Kept in memory, since
a planner that begins anew does better to know of no free node than of one that is not.
"""

from collections.abc import Collection, Mapping, Sequence

from lockstep.clock import NS_PER_S
from planner.controllers.protocol import Node

_FREE_S = 3600.0


class FreeNodes:
    """The nodes that were seen to become free."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._held: dict[str, str] = {}  # by whom, at the last look
        self._names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return them as they were at the last look."""
        return self._names

    def update(
        self,
        jobs: Mapping[str, Sequence[str]],
        silent: Collection[str],
        returned: Mapping[str, int],
        nodes: Sequence[Node] | None,
        now_ns: int,
        blamed: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Return the free nodes after a look.

        `silent` jobs have sent nothing, and still have what they had; `returned` nodes came back at that moment;
        `blamed` ones have an open incident.
        """
        if nodes is None:
            return self._names  # nobody could be asked, or there is nobody to ask
        held = {node: job for job, mine in jobs.items() for node in mine}
        held |= {node: job for node, job in self._held.items() if job in silent and node not in held}
        left = dict.fromkeys(set(self._held) - set(held), now_ns)
        known = {*returned, *self._since_ns}
        since = {node: max(returned.get(node, 0), self._since_ns.get(node, 0)) for node in known}
        self._since_ns, self._held = {**since, **left}, held
        taken = {node.name for node in nodes if node.is_idle is False}  # by whoever sends us nothing
        listed, usable = {node.name for node in nodes}, {node.name for node in nodes if node.is_usable}
        gone = set(self._since_ns) - listed if usable else set()  # NVRx tells of excluded nodes only
        barred = {*held, *blamed, *gone, *taken, *(listed - usable)}
        floor_ns = now_ns - int(_FREE_S * NS_PER_S)
        self._since_ns = {node: since for node, since in self._since_ns.items() if node not in held}
        self._names = tuple(
            sorted(node for node, since in self._since_ns.items() if node not in barred and since >= floor_ns)
        )
        return self._names
