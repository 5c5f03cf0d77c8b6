"""The cluster's topology and all that it was before: each version with who published it, when, and from what."""

import hashlib

from pydantic import Field
from sqlalchemy import insert, select

from lockstep.control.audit import record_within
from lockstep.control.database import ControlDatabase
from lockstep.control.documents import read_document
from lockstep.control.tables import TOPOLOGIES
from lockstep.errors import BadInput, NotPresent
from lockstep.topology import Topology, checked
from lockstep.verdict import Frozen


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
    if limit < 1:
        raise BadInput(f"limit is {limit}, and a page has at least 1 row")
    with db.read() as connection:
        rows = connection.execute(select(*_FACTS).order_by(TOPOLOGIES.c.number.desc()).limit(limit))
        return [TopologyVersion.model_validate(dict(row._mapping)) for row in rows]
