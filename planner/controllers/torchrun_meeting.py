"""Where the agents of a torchrun job meet: the node that hosts the c10d store, and how it moves to another.

Without the store all agents end, so a fault of its node is a fault of the whole job. The place can move at a restart
if the launch command asks for it: `--rdzv-endpoint=$rendezvous:29400`. Where it is now is kept in a note.
"""

import re
from collections.abc import Sequence

from planner.controllers.notes import Notes

_NOTE = "rendezvous"
_ASKED_FOR = re.compile(r"\$\{?rendezvous\b")


class Meeting:
    """The node where agents meet; none where the store is a service of its own, such as etcd."""

    def __init__(self, first: str | None, launch: str, notes: Notes) -> None:
        self._first, self._notes = first, notes
        self.can_move = bool(_ASKED_FOR.search(launch))

    @property
    def node(self) -> str | None:
        """Return the node that hosts the store now."""
        return (self._notes.read(_NOTE) or {}).get("node", self._first) if self._first else None

    def choose(self, wanted: Sequence[str]) -> str | None:
        """Return the node of the next meeting: the one of now, or the first of those that take part."""
        now = self.node
        return wanted[0] if now and wanted and now not in wanted else now

    def move(self, node: str | None) -> None:
        """Write down where agents meet from now on."""
        if node != self.node and node is not None:
            self._notes.write(_NOTE, {"node": node})

    def why_stuck(self, node: str, job: str) -> str | None:
        """Return why the job cannot go on without a node; None: it can, as far as the meeting goes."""
        if node != self.node or self.can_move:
            return None
        return (
            f"this needs a person: {node} hosts the rendezvous of job {job}, and the launch command names it for "
            "good; with $rendezvous in its place the job could be started again at another"
        )
