"""A controller that is told of nodes as it spells them itself: telemetry may know them with or without a domain."""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.hostlists import match_hosts
from planner.controllers.protocol import Controller, ControllerAct, JobView, Node, Report, Restart


class OwnSpelling:
    """What is asked for under a host's name reaches the one node that it means; answers are handed on as they are."""

    def __init__(self, controller: Controller) -> None:
        self.name = controller.name
        self._controller = controller
        self._nodes: frozenset[str] = frozenset()  # as it called them last

    @property
    def acts(self) -> frozenset[ControllerAct]:
        return self._controller.acts

    @property
    def restarts_whole_job(self) -> bool:
        return self._controller.restarts_whole_job

    def nodes(self) -> Sequence[Node]:
        found = self._controller.nodes()
        self._nodes = frozenset(node.name for node in found)
        return found

    def job(self, job: str) -> JobView | None:
        return self._controller.job(job)

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        return self._controller.isolate(self._spell(node)[0], mark, reason)

    def release(self, node: str, mark: str) -> Report:
        return self._controller.release(self._spell(node)[0], mark)

    def restart(self, order: Restart) -> Report:
        return self._controller.restart(replace(order, exclude=self._spell(*order.exclude)))

    def reattempt(self, job: str, mark: str) -> Report:
        return self._controller.reattempt(job, mark)

    def _spell(self, *hosts: str) -> tuple[str, ...]:
        """Return the hosts as the controller calls them; one that it has not told of stays as it is."""
        if not self._nodes.issuperset(hosts):
            self.nodes()
        meant = match_hosts(hosts, self._nodes)
        return tuple(meant.get(host, host) for host in hosts)
