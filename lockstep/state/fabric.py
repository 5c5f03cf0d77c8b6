"""The fabric as published and planned: versions of the topology, path plans, and how much of them hosts kept."""

import hashlib
from collections.abc import Mapping, Sequence

from pydantic import Field
from sqlalchemy import Connection, delete, insert, select, update

from lockstep.errors import NotPresent
from lockstep.host_paths import HostPaths, PathChoice, PathCount, PathSummary
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import (
    check_limit,
    read_all,
    read_by_id,
    read_document,
    record_within,
    row_of,
    write_over,
)
from lockstep.state.leases import Lease, refuse_stale
from lockstep.state.tables import HOST_PATHS, PATH_COUNTS, PATH_PLANS, TOPOLOGIES
from lockstep.topology import Topology, checked
from lockstep.verdict import Frozen

_KEPT = 1000  # plans whose summaries are remembered: days, where links come and go every few minutes

Choices = Mapping[str, Sequence[PathChoice]]


def save_path_plan(
    db: ControlDatabase, summary: PathSummary, choices: Choices, lease: Lease, is_enforceable: bool
) -> int:
    """Write a plan whole or not at all, and return its number; LeaseLost once another planner has taken over.

    A host whose choices are what they were keeps its number: it has nothing to do. One that is no longer in the plan
    is told that it has none.
    """
    with db.begin() as connection:
        refuse_stale(connection, lease)
        number = _add(connection, summary)
        held = _held(connection)
        parts = [
            HostPaths(
                host=host,
                generation=number,
                made_ns=summary.made_ns,
                lease_end_ns=lease.expires_ns,
                is_enforceable=is_enforceable,
                choices=tuple(choices.get(host, ())),
            )
            for host in sorted({*held, *choices})
        ]
        rows = [
            row_of(part, "generation", id=part.host)
            for part in parts
            if _what_counts(held.get(part.host)) != _what_counts(part)
        ]
        write_over(connection, HOST_PATHS, rows)
        connection.execute(delete(PATH_PLANS).where(PATH_PLANS.c.number <= number - _KEPT))
    return number


def score_path_plan(db: ControlDatabase, number: int, measured: Mapping[str, float], lease: Lease) -> None:
    """Write down beside a plan's forecast what became of it; a plan that is forgotten has no score."""
    with db.begin() as connection:
        refuse_stale(connection, lease)
        text = connection.scalar(select(PATH_PLANS.c.document).where(PATH_PLANS.c.number == number))
        if text is not None:
            scored = read_document(PathSummary, text).model_copy(update={"measured": dict(measured)})
            row = update(PATH_PLANS).where(PATH_PLANS.c.number == number)
            connection.execute(row.values(document=scored.model_dump_json()))


def newest_path_plan(db: ControlDatabase) -> PathSummary | None:
    """Return the plan in force; None before the first."""
    plans = list_path_plans(db, limit=1)
    return plans[0] if plans else None


def list_path_plans(db: ControlDatabase, limit: int = 100) -> list[PathSummary]:
    """Return the newest plans first."""
    query = select(PATH_PLANS.c.document).order_by(PATH_PLANS.c.number.desc()).limit(limit)
    return read_all(db, PathSummary, query)


def paths_of_host(db: ControlDatabase, host: str) -> HostPaths:
    """Return what a host is told, or raise NotPresent where no plan has ever named it."""
    with db.read() as connection:
        text = connection.scalar(select(HOST_PATHS.c.document).where(HOST_PATHS.c.id == host))
    if text is None:
        raise NotPresent(f"no path plan has named host {host!r} so far")
    return read_document(HostPaths, text)


def list_host_paths(db: ControlDatabase) -> list[HostPaths]:
    """Return what all hosts are told."""
    with db.read() as connection:
        return list(_held(connection).values())


def save_path_count(db: ControlDatabase, host: str, count: PathCount, now_ns: int) -> None:
    """Remember how much of its plan a host has kept; the newest word counts."""
    with db.begin() as connection:
        write_over(connection, PATH_COUNTS, [row_of(count, id=host, ts_ns=now_ns)])


def list_path_counts(db: ControlDatabase) -> dict[str, PathCount]:
    """Return what each host told last."""
    return read_by_id(db, PathCount, select(PATH_COUNTS.c.id, PATH_COUNTS.c.document).order_by(PATH_COUNTS.c.id))


def find_enforced_share(db: ControlDatabase) -> float:
    """Return the share of planned connections that keep to the plan; 0 where none was seen."""
    counts = list_path_counts(db).values()
    planned = sum(count.planned for count in counts)
    return sum(count.enforced for count in counts) / planned if planned else 0.0


def _add(connection: Connection, summary: PathSummary) -> int:
    """Write a summary with the number it gets."""
    row = insert(PATH_PLANS).values(made_ns=summary.made_ns, document="").returning(PATH_PLANS.c.number)
    number = int(connection.execute(row).scalar_one())
    numbered = summary.model_copy(update={"generation": number})
    connection.execute(
        update(PATH_PLANS).where(PATH_PLANS.c.number == number).values(document=numbered.model_dump_json())
    )
    return number


def _held(connection: Connection) -> dict[str, HostPaths]:
    rows = connection.execute(select(HOST_PATHS.c.id, HOST_PATHS.c.document).order_by(HOST_PATHS.c.id))
    return {host: read_document(HostPaths, text) for host, text in rows}


def _what_counts(part: HostPaths | None) -> tuple[object, ...]:
    """Return what makes a host's part another one."""
    return () if part is None else (part.choices, part.is_enforceable)


class TopologyVersion(Frozen):
    """What is known of a version beside the topology itself."""

    number: int = Field(description="goes up with each version")
    digest: str = Field(description="SHA-256 of the content, whatever order nodes and links stand in")
    created_ns: int
    who: str = Field(description="who published it")
    source: str = Field(description="where it came from, such as a file")


_FACTS = [TOPOLOGIES.c[name] for name in TopologyVersion.model_fields]


def digest_of(topology: Topology) -> str:
    """Return a digest that is equal for topologies that tell the same."""
    in_order = {
        "nodes": tuple(sorted(topology.nodes, key=lambda node: node.id)),
        "links": tuple(sorted(topology.links, key=lambda link: link.id)),
    }
    return hashlib.sha256(topology.model_copy(update=in_order).model_dump_json().encode()).hexdigest()


def publish_topology(
    db: ControlDatabase, topology: Topology, *, source: str, now_ns: int, who: str = "unknown", why: str = ""
) -> tuple[TopologyVersion, bool]:
    """Make this the newest topology and return its version; False: the newest is the same already, and stays."""
    digest = digest_of(checked(topology))
    row = {"digest": digest, "created_ns": now_ns, "who": who, "source": source}
    with db.begin() as connection:
        newest = connection.execute(select(*_FACTS).order_by(TOPOLOGIES.c.number.desc()).limit(1)).one_or_none()
        if newest is not None and newest.digest == digest:
            return TopologyVersion.model_validate(dict(newest._mapping)), False
        new = insert(TOPOLOGIES).values(row | {"document": topology.model_dump_json(exclude_none=True)})
        number = connection.execute(new.returning(TOPOLOGIES.c.number)).scalar_one()
        record_within(connection, who=who, what="publish_topology", subject=str(number), why=why, now_ns=now_ns)
    return TopologyVersion.model_validate(row | {"number": number}), True


def find_topology(db: ControlDatabase, number: int | None = None) -> tuple[TopologyVersion, Topology]:
    """Return a version and its topology, the newest where no number is given, or raise NotPresent."""
    query = select(TOPOLOGIES).order_by(TOPOLOGIES.c.number.desc()).limit(1)
    if number is not None:
        query = query.where(TOPOLOGIES.c.number == number)
    with db.read() as connection:
        row = connection.execute(query).one_or_none()
    if row is None:
        raise NotPresent("no topology was published" if number is None else f"there is no topology {number}")
    facts = {name: value for name, value in row._mapping.items() if name != "document"}
    return TopologyVersion.model_validate(facts), read_document(Topology, row.document)


def list_topologies(db: ControlDatabase, limit: int) -> list[TopologyVersion]:
    """Return the newest versions first."""
    check_limit(limit)
    with db.read() as connection:
        rows = connection.execute(select(*_FACTS).order_by(TOPOLOGIES.c.number.desc()).limit(limit))
        return [TopologyVersion.model_validate(dict(row._mapping)) for row in rows]
