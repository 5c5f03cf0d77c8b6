"""Keeps the connections of a running job on the paths of the plan, by translating their source ports on the wire.

Stands for an enforcing agent on every host: it reads the plan as the host's collector was told it, finds a port by
probing, and tells the store which links each of its connections takes now, under the port that the socket itself has.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from collector.shipping import Batch, GatewayClient
from lockstep.arrow import rows_of
from lockstep.batches import encode_batch
from lockstep.clock import SystemClock
from lockstep.records import Path as PathRow
from lockstep.state.database import ControlDatabase
from lockstep.tables import TABLE_BY_NAME
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.flows import Nic
from tests.testbed.paths.planning_head import PlanningHead
from tests.testbed.paths.ports import PortFinder
from tests.testbed.paths.probing import PathProber
from tests.testbed.paths.timeline import note_moved
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.workers.job import Job
from tests.testbed.workers.plan import JobPlan

_LOOK_S = 0.2
_PATHS = TABLE_BY_NAME["paths"]
_SURE = 1.0  # the probe had the very ports that the connection has on the wire


def live_directions(plan: JobPlan, job: Job) -> dict[str, Direction]:
    """Return the connections by which ranks send, by the names that the path planner has for them."""
    host_at = {
        (plan.comm_id(kind, group), place): plan.hosts[world]
        for rank in range(plan.layout.ranks)
        for kind in plan.kinds_of(rank)
        for group in [plan.layout.group_of(kind, rank)]
        for place, world in enumerate(group)
    }
    return {
        f"{plan.job}/{s.comm:x}/r{s.rank}-r{s.peer}/c{s.channel}/q0": Direction(
            (host_at[s.comm, s.rank], s.nic), (host_at[s.comm, s.peer], s.nic), s.sport, s.dport
        )
        for rank in job.ranks
        for s in rank.sockets
    }


@dataclass(frozen=True, slots=True)
class LivePath:
    """Where a connection goes now."""

    links: tuple[str, ...]
    translation: Translation | None = None


class LivePaths:
    """Follows the plan until the block ends; then all connections have their own ports again."""

    def __init__(
        self,
        fabric: Fabric,
        head: PlanningHead,
        control: ControlDatabase,
        directions: Mapping[str, Direction],
        *,
        tells: bool = True,
    ) -> None:
        """`tells`: whether the store learns which links each connection takes; without, probes must do."""
        self._fabric, self._head, self._control, self._directions = fabric, head, control, directions
        self._tells, self._clock = tells, SystemClock()
        self._prober = PathProber(fabric)
        self._finder = PortFinder(self._prober, seed=1)
        self._couriers = {host: _Courier(head, host) for host in {each.src[0] for each in directions.values()}}
        self.paths: dict[str, LivePath] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live-paths")

    def __enter__(self) -> "LivePaths":
        self.paths = {name: LivePath(self._probe(direction)) for name, direction in self._directions.items()}
        for name in self.paths:
            self._tell(name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for path in self.paths.values():
            if path.translation:
                path.translation.undo()
        self._prober.close()
        for courier in self._couriers.values():
            courier.close()

    def crossing(self, link: str) -> list[str]:
        """Return the connections that cross a link now."""
        return [name for name, path in self.paths.items() if link in path.links]

    def nics_over(self, link: str) -> list[Nic]:
        """Return both NICs of each connection that crosses a link now."""
        return [
            nic for name in self.crossing(link) for nic in (self._directions[name].src, self._directions[name].dst)
        ]

    def is_planned(self) -> bool:
        """Return whether all connections are on the paths of the newest plan that their hosts know."""
        told = [self._head.told(host) for host in self._couriers]
        wanted = {choice.connection: choice.links for each in told if each for choice in each.choices}
        return all(wanted.get(name) == path.links for name, path in self.paths.items())

    def _follow(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            for host in self._couriers:
                self._keep_to_plan(host)

    def _keep_to_plan(self, host: str) -> None:
        """Move what the newest plan of a host wants elsewhere; what finds no port now is tried again."""
        told = self._head.told(host)
        for choice in told.choices if told else ():
            path = self.paths.get(choice.connection)
            if told and path and path.links != choice.links:
                self._move(choice.connection, choice.links, told.generation)

    def _move(self, name: str, links: tuple[str, ...], generation: int) -> None:
        direction, before = self._directions[name], self.paths[name]
        ports = self._finder.find(direction.src, direction.dst, direction.dport, links)
        if not ports:
            return
        self.paths[name] = LivePath(links, Translation(self._fabric, direction, ports[0]))
        if before.translation:  # the new rule is there already, and counts as soon as the old one is gone
            before.translation.undo()
        why = f"from {' '.join(before.links[1:-1])} to {' '.join(links[1:-1])}"
        note_moved(self._control, name, generation, why, self._clock.now_ns())
        self._tell(name)

    def _probe(self, direction: Direction) -> tuple[str, ...]:
        ports = (direction.sport, direction.dport)
        return self._prober.find_paths(direction.src, direction.dst, [ports]).get(ports, ())

    def _tell(self, name: str) -> None:
        """Write the links of a connection into `paths`, where the analyzer looks for them."""
        direction, links = self._directions[name], self.paths[name].links
        if links and self._tells:
            row = _path_row(direction, links, self._clock.now_ns())
            self._couriers[direction.src[0]].send(row)


def _path_row(direction: Direction, links: tuple[str, ...], now_ns: int) -> PathRow:
    (host, src_nic), (dst, dst_nic) = direction.src, direction.dst
    return PathRow(
        host=host,
        src_nic=src_nic,
        dst=dst,
        dst_nic=dst_nic,
        proto="tcp",
        sport=direction.sport,
        dport=direction.dport,
        links=list(links),
        seen_ns=now_ns,
        confidence=_SURE,
    )


class _Courier:
    """Brings rows of one host to the gateway, beside its collector."""

    def __init__(self, head: PlanningHead, host: str) -> None:
        self._client = GatewayClient(head.url, head.token_of(host).read_text(), host)
        self._numbers = count(1)

    def send(self, row: PathRow) -> None:
        body = encode_batch({"paths": rows_of(_PATHS, [row])})
        self._client.send(Batch("paths", next(self._numbers), body, rows=1))

    def close(self) -> None:
        self._client.close()
