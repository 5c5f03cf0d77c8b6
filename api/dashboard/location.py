"""Where a part is: its host and rack, the ranks on it, its cable, and which jobs a drain of its node would end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from api.parts import Parts
from api.views.hosts import list_hosts
from api.views.part_names import ends_of, nodes_of
from api.views.ranks import Rank, list_ranks
from lockstep.topology import Topology
from lockstep.verdict import Incident
from lockstep.words import kind_of

_NAMED = 8  # ranks that are named one by one where they are no row


@dataclass(frozen=True, slots=True)
class Location:
    """Where a technician would walk to, and whom it would hit."""

    host: str
    rack: str | None
    ranks: tuple[int, ...]  # of the incident's job
    cables: tuple[str, ...]  # what the part's own NICs are plugged into
    jobs: tuple[str, ...]  # that run on the host now

    def __str__(self) -> str:
        """Return it as a person says it."""
        described = [f"host {self.host}", f"rack {self.rack}" if self.rack else "", say_ranks(self.ranks)]
        return ", ".join(filter(None, described)) + "".join(f"; {cable}" for cable in self.cables)


def find_location(parts: Parts, incident: Incident) -> Location | None:
    """Return where the part is; None for one that is not of one host."""
    component, now_ns = incident.verdict.component, parts.second_ns()
    known = {each.host: each for each in list_hosts(parts.store, parts.control, parts.topology, now_ns)}
    found = [known[node] for node in sorted(nodes_of(component)) if node in known]
    if len(found) != 1:
        return None
    ranks = list_ranks(parts.store, incident.job, incident.attempt, now_ns)
    return Location(
        host=found[0].host,
        rack=found[0].rack,
        ranks=tuple(choose_ranks(component, found[0].host, ranks)),
        cables=tuple(find_cables(component, parts.topology)),
        jobs=found[0].jobs,
    )


def choose_ranks(component: str, host: str, ranks: Iterable[Rank]) -> list[int]:
    """Return the ranks on a host, or on the GPU that is meant."""
    gpu = component.rpartition("/")[2] if kind_of(component) == "gpu" else ""
    return sorted(rank.rank for rank in ranks if rank.host == host and (not gpu or gpu == str(rank.gpu)))


def find_cables(component: str, topology: Topology | None) -> list[str]:
    """Return what a NIC is plugged into; nothing for other parts, whose name says it or which have no plug."""
    if topology is None or kind_of(component) != "nic":
        return []
    (end,) = ends_of(component)
    other = [b if a == end else a for a, b in ((link.a, link.b) for link in topology.links) if end in (a, b)]
    return [f"plugged into {each}" for each in other]


def say_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> say_ranks([4]), say_ranks([24, 25, 26]), say_ranks([0, 8])
    ('rank 4', 'ranks 24 to 26', 'ranks 0, 8')
    """
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"
