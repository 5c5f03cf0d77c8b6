"""Every topology that was published is kept; the newest is the cluster's, and the same again is no new one."""

import pytest

from lockstep.errors import BadInput, BadTopology, NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.fabric import TopologyVersion, digest_of, find_topology, list_topologies, publish_topology
from lockstep.topology import Topology

SMALL = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1)
LARGER = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)


def publish(db: ControlDatabase, topology: Topology, now_ns: int = 5) -> TopologyVersion:
    version, is_new = publish_topology(db, topology, source="fabric.txt", now_ns=now_ns, who="ada")
    assert is_new
    return version


def test_newest_topology_wins_and_the_old_one_stays(db: ControlDatabase) -> None:
    first, second = publish(db, SMALL), publish(db, LARGER, now_ns=9)
    assert find_topology(db) == (second, LARGER)
    assert find_topology(db, first.number) == (first, SMALL)
    assert list_topologies(db, limit=10) == [second, first]
    assert (second.created_ns, second.who, second.source) == (9, "ada", "fabric.txt")


def test_same_topology_again_is_no_new_version(db: ControlDatabase) -> None:
    first = publish(db, SMALL)
    shuffled = SMALL.model_copy(update={"links": SMALL.links[::-1], "nodes": SMALL.nodes[::-1]})
    assert publish_topology(db, shuffled, source="elsewhere", now_ns=9) == (first, False)
    assert list_topologies(db, limit=10) == [first]


def test_topology_that_returns_is_a_version_of_its_own(db: ControlDatabase) -> None:
    numbers = [publish(db, topology).number for topology in (SMALL, LARGER, SMALL)]
    assert numbers == sorted(set(numbers))
    assert find_topology(db)[1] == SMALL


def test_digest_changes_with_every_fact(db: ControlDatabase) -> None:
    slower = SMALL.links[0].model_copy(update={"gbps": 100.0})
    down = SMALL.links[0].model_copy(update={"up": False})
    others = [SMALL.model_copy(update={"links": (link, *SMALL.links[1:])}) for link in (slower, down)]
    assert len({digest_of(topology) for topology in (SMALL, LARGER, *others)}) == 4


def test_publishing_is_audited(db: ControlDatabase) -> None:
    version, _ = publish_topology(db, SMALL, source="x", now_ns=5, who="ada", why="rack 7 was moved")
    (line,) = list_audit(db, 10)
    assert (line.who, line.what, line.subject, line.why) == (
        "ada",
        "publish_topology",
        str(version.number),
        "rack 7 was moved",
    )


def test_topology_that_contradicts_itself_is_not_published(db: ControlDatabase) -> None:
    broken = SMALL.model_copy(update={"nodes": SMALL.nodes[1:]})
    with pytest.raises(BadTopology, match="there is no node"):
        publish_topology(db, broken, source="x", now_ns=5)
    assert list_topologies(db, limit=10) == []


def test_version_that_never_was_is_not_present(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no topology was published"):
        find_topology(db)
    publish(db, SMALL)
    with pytest.raises(NotPresent, match="there is no topology 99"):
        find_topology(db, 99)


def test_page_has_at_least_one_row(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="limit is 0"):
        list_topologies(db, limit=0)
