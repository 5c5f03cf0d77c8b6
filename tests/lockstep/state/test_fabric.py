"""Published topologies and path plans: the newest counts, hosts see only what changed for them, all is audited."""

import pytest

from lockstep.errors import BadInput, BadTopology, LeaseLost, NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.host_paths import PathChoice, PathCount, PathSummary
from lockstep.state import fabric
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.leases import Lease
from lockstep.topology import Topology
from tests.fixtures.control import hold_lease

SMALL = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1)
LARGER = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)


def publish(db: ControlDatabase, topology: Topology, now_ns: int = 5) -> fabric.TopologyVersion:
    version, is_new = fabric.publish_topology(
        db, topology, source="fabric.txt", now_ns=now_ns, who="ada", why="rack 7 moved"
    )
    assert is_new
    return version


def test_newest_topology_wins_and_the_old_one_stays(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no topology was published"):
        fabric.find_topology(db)
    first, second = publish(db, SMALL), publish(db, LARGER, now_ns=9)
    assert fabric.find_topology(db) == (second, LARGER)
    assert fabric.find_topology(db, first.number) == (first, SMALL)
    assert fabric.list_topologies(db, limit=10) == [second, first]
    assert (second.created_ns, second.who, second.source) == (9, "ada", "fabric.txt")
    line = list_audit(db, 1)[0]
    assert (line.who, line.what, line.subject) == ("ada", "publish_topology", str(second.number))
    assert line.why == "rack 7 moved"
    again = publish(db, SMALL)
    assert again.number > second.number, "a topology that returns is a version of its own"
    with pytest.raises(NotPresent, match="there is no topology 99"):
        fabric.find_topology(db, 99)
    with pytest.raises(BadInput, match="limit is 0"):
        fabric.list_topologies(db, limit=0)


def test_same_topology_again_is_no_new_version_and_a_broken_one_is_none(db: ControlDatabase) -> None:
    first = publish(db, SMALL)
    shuffled = SMALL.model_copy(update={"links": SMALL.links[::-1], "nodes": SMALL.nodes[::-1]})
    assert fabric.publish_topology(db, shuffled, source="elsewhere", now_ns=9) == (first, False)
    broken = SMALL.model_copy(update={"nodes": SMALL.nodes[1:]})
    with pytest.raises(BadTopology, match="there is no node"):
        fabric.publish_topology(db, broken, source="x", now_ns=5)
    assert fabric.list_topologies(db, limit=10) == [first]


def test_digest_changes_with_every_fact() -> None:
    slower = SMALL.links[0].model_copy(update={"gbps": 100.0})
    down = SMALL.links[0].model_copy(update={"up": False})
    others = [SMALL.model_copy(update={"links": (link, *SMALL.links[1:])}) for link in (slower, down)]
    assert len({fabric.digest_of(topology) for topology in (SMALL, LARGER, *others)}) == 4


def summary(made_ns: int = 5) -> PathSummary:
    return PathSummary(generation=0, made_ns=made_ns, flows=2, with_ports=1, max_use=0.5, bound=0.5)


def choice(
    connection: str = "f0", sports: tuple[int, ...] = (4000,), destination: str | None = "10.0.0.2"
) -> PathChoice:
    ends = {"nic": "eth0", "dst": "h1", "dst_nic": "eth0"}
    return PathChoice(connection=connection, **ends, links=("a", "b"), destination=destination, sports=sports)


def held(db: ControlDatabase, holder: str = "me", now_ns: int = 0) -> Lease:
    return hold_lease(db, "paths", holder, ttl_ns=100, now_ns=now_ns)


def test_plans_are_numbered_upwards_and_the_newest_is_in_force(db: ControlDatabase) -> None:
    assert fabric.newest_path_plan(db) is None
    first, second = (fabric.save_path_plan(db, summary(made_ns=n), {}, held(db), True) for n in (1, 2))
    assert second > first
    newest = summary(made_ns=2).model_copy(update={"generation": second})
    mine = held(db)
    held(db, "other", now_ns=200)
    with pytest.raises(LeaseLost):
        fabric.save_path_plan(db, summary(), {"h0": [choice()]}, mine, True)
    assert fabric.newest_path_plan(db) == newest
    assert [plan.generation for plan in fabric.list_path_plans(db)] == [second, first]


def test_a_host_keeps_its_number_while_its_choices_stay_and_its_newest_count_counts(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no path plan has named host 'h9'"):
        fabric.paths_of_host(db, "h9")
    first = fabric.save_path_plan(db, summary(), {"h0": [choice()]}, held(db), True)
    fabric.save_path_plan(db, summary(), {"h0": [choice()], "h1": [choice("f1")]}, held(db), True)
    third = fabric.save_path_plan(db, summary(), {"h0": [choice()], "h1": [choice("f2")]}, held(db), True)
    assert fabric.paths_of_host(db, "h0").generation == first
    assert (fabric.paths_of_host(db, "h1").generation, fabric.paths_of_host(db, "h1").choices) == (
        third,
        (choice("f2"),),
    )
    fourth = fabric.save_path_plan(db, summary(), {"h1": [choice("f2")]}, held(db), True)
    assert (fabric.paths_of_host(db, "h0").generation, fabric.paths_of_host(db, "h0").choices) == (fourth, ())
    for enforced in (1, 3):
        fabric.save_path_count(db, "h0", PathCount(generation=1, planned=4, enforced=enforced), now_ns=enforced)
    assert fabric.list_path_counts(db)["h0"].enforced == 3


@pytest.mark.parametrize(("is_enforced", "ports"), [(True, [(4000,), ()]), (False, [])])
def test_the_file_of_a_host_has_its_ports_unless_they_are_advice(
    db: ControlDatabase, is_enforced: bool, ports: list[tuple[int, ...]]
) -> None:
    choices = [choice(), choice("f1", sports=()), choice("f2", destination=None)]
    number = fabric.save_path_plan(db, summary(), {"h0": choices}, held(db), is_enforced)
    written = fabric.paths_of_host(db, "h0").as_file()
    assert (written.generation, [entry.ports for entry in written.entries]) == (number, ports)
