"""The catalogue keeps the ports whose path is known and good, says how sure it is, and why others are not in it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.arrow import rows_of
from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.records import Path, Probe
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Link, Topology, TopologyIndex, checked
from planner.paths import catalogue
from planner.paths.catalogue import HALF_LIFE_S, Catalogue, Changes, Circumstances, read_probes
from tests.builders import SECOND, T0
from tests.planner.paths.build import PORT, entry, fold_probes, in_order, insert, lost, probe

FABRIC = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
WAY = ["h0/eth0--leaf0", "leaf0--spine0", "leaf1--spine0", "h2/eth0--leaf1"]


def learn(*probes: Probe, at_s: float = 0, reported: Catalogue | None = None, **fields: Any) -> Catalogue:
    now = Circumstances(**{"topology": FABRIC, "now_ns": T0 + int(at_s * SECOND), **fields})
    return catalogue.build_catalogue(fold_probes(*probes), now, reported)


def why(found: Catalogue) -> tuple[str, str]:
    assert found.paths == ()
    (only,) = found.left_out
    return only.why, only.reason


def changed(link: str, **fields: Any) -> Topology:
    links = [each.model_copy(update=fields) if each.id == link else each for each in FABRIC.links]
    return FABRIC.model_copy(update={"links": tuple(links)})


def doubled() -> Topology:
    return checked(
        FABRIC.model_copy(update={"links": (*FABRIC.links, Link(id="second", a="leaf0", b="spine0", gbps=400))})
    )


def test_hops_become_links_in_order() -> None:
    (path,) = learn(probe()).paths
    assert path == Path(
        host="h0", src_nic="eth0", dst="h2", dst_nic="eth0", proto="roce", sport=PORT, dport=4791, links=WAY,
        seen_ns=T0, confidence=pytest.approx(2 / 3),  # type: ignore[arg-type]  # compares like a float
    )  # fmt: skip
    (path,) = learn(probe(dst="h1", hops=["leaf0"])).paths
    assert path.links == ["h0/eth0--leaf0", "h1/eth0--leaf0"]


def test_confidence_grows_with_probes_that_agree_and_halves_with_age_until_the_entry_leaves() -> None:
    (path,) = learn(*(probe(second) for second in range(8)), at_s=7).paths
    assert path.confidence == pytest.approx(0.9)
    (path,) = learn(probe(), at_s=HALF_LIFE_S).paths
    assert path.confidence == pytest.approx(1 / 3)
    assert why(learn(probe(), at_s=catalogue.MOST_AGE_S + 1)) == ("old", "it was last seen 21601 s ago")


def test_a_later_probe_that_went_elsewhere_replaces_the_entry_and_its_losses() -> None:
    (path,) = learn(probe(0), probe(1), probe(2, "spine1"), at_s=2).paths
    assert path.links[1] == "leaf0--spine1"
    assert path.confidence == pytest.approx(2 / 3)
    (path,) = learn(probe(0), *(lost(second) for second in range(1, 8)), probe(8, "spine1"), at_s=8).paths
    assert path.links[1] == "leaf0--spine1"
    sprayed = learn(*(probe(second, f"spine{second % 2}") for second in range(40)), at_s=39)
    assert sprayed.paths[0].confidence < 0.1


def test_parallel_cables_share_the_confidence_unless_one_was_told_or_is_down() -> None:
    (path,) = learn(probe(), topology=doubled()).paths
    assert path.confidence == pytest.approx(1 / 3)
    reported = Catalogue((entry(links=[WAY[0], "second", *WAY[2:]]),))
    (path,) = learn(probe(), topology=doubled(), reported=reported).paths
    assert path.links[1] == "second"
    assert path.confidence == pytest.approx(2 / 3)
    links = tuple(link.model_copy(update={"up": link.id != "second"}) for link in doubled().links)
    (path,) = learn(probe(), topology=doubled().model_copy(update={"links": links})).paths
    assert path.confidence == pytest.approx(2 / 3)


def test_a_port_that_does_not_answer_or_whose_link_is_down_is_dead() -> None:
    assert why(learn(probe(0), lost(1), lost(2), lost(3))) == ("dead", "its last 3 probes were lost")
    assert learn(probe(0), lost(1), lost(2)).paths
    assert why(learn(lost(0))) == ("dead", "its last 1 probes were lost")
    found = learn(probe(), topology=changed("leaf1--spine0", up=False))
    assert why(found) == ("dead", "leaf1--spine0 is down")


def test_a_lossy_port_or_path_leaves_once_chance_does_not_explain_it() -> None:
    few = [probe(second) if second != 50 else lost(second) for second in range(100)]
    assert len(learn(*few).paths) == 1
    many = [lost(second) if second % 20 == 5 else probe(second) for second in range(100)]
    assert why(learn(*many)) == ("lossy", "5 of 100 probes were lost on its path")
    ports = range(PORT, PORT + 8)
    ill = [each for port in ports for each in (probe(0, sport=port), lost(1, sport=port))]
    well = [probe(second, "spine1", sport=port + 100) for port in ports for second in (0, 1)]
    found = learn(*ill, *well)
    assert {path.links[1] for path in found.paths} == {"leaf0--spine1"}
    assert {(each.why, each.reason) for each in found.left_out} == {("lossy", "8 of 16 probes were lost on its path")}


def test_a_changed_link_makes_all_ports_between_its_leaves_doubtful_and_no_others() -> None:
    for link in ("leaf0--spine0", "leaf0--spine1", "leaf1--spine1", "h0/eth0--leaf0"):
        assert why(learn(probe(), changed_ns={link: T0 + 1})) == ("changed", f"{link} changed after it was probed")
        assert learn(probe(1), changed_ns={link: T0}).paths
    assert learn(probe(), changed_ns={"h1/eth0--leaf0": T0 + 1}).paths
    larger = leaf_spine(hosts=6, nics_per_host=1, leaves=3, spines=2)
    assert len(learn(probe(), topology=larger, changed_ns={"leaf2--spine0": T0 + 1}).paths) == 1


def test_a_change_makes_doubtful_what_was_known_before_it_without_new_probes() -> None:
    known = learn(probe(0), probe(5, sport=PORT + 1), probe(5, "*", sport=PORT + 2), at_s=5)
    now = Circumstances(FABRIC, T0 + 6 * SECOND, {"leaf0--spine1": T0 + 3 * SECOND})
    later = catalogue.doubt_changed(known, now)
    assert [path.sport for path in later.paths] == [PORT + 1]
    assert [(each.path.sport, each.why) for each in later.left_out] == [(PORT + 2, "unclear"), (PORT, "changed")]


def test_hops_that_nobody_knows_or_joins_are_left_out_with_the_reason() -> None:
    assert why(learn(probe(via="*"))) == ("unclear", "not every switch on its path answered")
    assert why(learn(probe(via="spine9")))[0] == "elsewhere"
    assert why(learn(probe(hops=["leaf0", "leaf1"])))[0] == "elsewhere"


def test_rows_of_paths_are_recalled_with_their_age_where_their_links_are_there() -> None:
    rows = rows_of(
        TABLE_BY_NAME["paths"], [entry("spine1", seen_ns=T0 - 1), entry(), entry(dst=None, dst_nic="h3/eth0")]
    )
    found = catalogue.recall_catalogue(rows, Circumstances(FABRIC, T0 + int(HALF_LIFE_S * SECOND)))
    assert [(path.dst, path.dst_nic, path.links[1]) for path in found.paths] == [
        ("h2", "eth0", "leaf0--spine0"),
        ("h3", "eth0", "leaf0--spine0"),
    ]
    assert found.paths[0].confidence == pytest.approx(0.45)
    rows = rows_of(TABLE_BY_NAME["paths"], [entry(links=["x"]), entry("spine1", sport=PORT + 1)])
    found = catalogue.recall_catalogue(rows, Circumstances(changed("leaf0--spine1", up=False), T0))
    assert [each.why for each in found.left_out] == ["elsewhere", "dead"]


TREE = fat_tree(4)
INDEX = TopologyIndex(TREE)
HOSTS = [host.id for host in TREE.hosts]


def seen_port(src: str, dst: str, seen_ns: int = T0) -> Path:
    return entry(host=src, dst=dst, links=[], seen_ns=seen_ns)


@given(st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.sampled_from(TREE.links))
def test_links_between_are_those_that_the_topology_finds_by_search(src: str, dst: str, link: object) -> None:
    name = getattr(link, "id", "")
    between = {each.id for each in INDEX.links_between(src, "eth0", dst, "eth0")} - {
        cable.id for host in (src, dst) if (cable := INDEX.host_link(host, "eth0"))
    }
    assert Changes(TREE, {name: T0 + 1}).since(seen_port(src, dst)) == (name if name in between else "")


def test_what_changed_since_is_the_last_change_between_the_ends() -> None:
    first, second, elsewhere = "pod0-leaf0--pod0-spine0", "pod0-leaf0--pod0-spine1", "pod1-leaf0--pod1-spine0"
    links = tuple(each.model_copy(update={"up": each.id != first}) for each in TREE.links)
    down = TREE.model_copy(update={"links": links})
    for topology, changed_ns, seen_ns, expected in (
        (down, {first: T0}, T0, first),  # a link that is down lies where it lay
        (TREE, {first: T0, second: T0 + 5}, T0 + 6, ""),
        (TREE, {first: T0, second: T0 + 5}, T0 + 1, second),
        (TREE, {first: T0, elsewhere: T0 + 5}, T0 + 1, ""),
        (TREE, {"gone": T0}, 0, ""),
    ):
        assert Changes(topology, changed_ns).since(seen_port("h0", "h15", seen_ns)) == expected


def test_probes_fold_in_the_store_as_they_do_outside(embedded_store: Store) -> None:
    """Ports are lost, move, come back and fall silent, all at different times."""
    rng = np.random.default_rng(1)
    rtts = [int(value) if value > 30 else None for value in rng.integers(0, 100, 180)]
    paths = rng.choice(["spine0", "spine0", "spine0", "spine1", "*"], 180).tolist()
    ports = (PORT + rng.integers(0, 18, 180)).tolist()
    probes = [
        probe(index / 20, path, sport=port, rtt_ns=rtt_ns)
        for index, (path, port, rtt_ns) in enumerate(zip(paths, ports, rtts, strict=True))
    ]
    insert(embedded_store, *probes)
    assert in_order(read_probes(embedded_store, T0, T0 + 10 * SECOND)) == in_order(fold_probes(*probes))


def test_ports_destinations_and_protocols_are_kept_apart(embedded_store: Store) -> None:
    insert(embedded_store, probe(), probe(sport=PORT + 1), probe(proto="tcp"), probe(dst="h3"), probe(1), lost(20))
    assert sorted(read_probes(embedded_store, T0, T0 + 10 * SECOND)["agreed"].to_pylist()) == [1, 1, 1, 2]
    earlier = read_probes(embedded_store, T0, T0 + SECOND).to_pylist()
    assert {(row["agreed"], row["lost"], row["tried_ns"]) for row in earlier} == {(1, 0, T0)}


def test_the_newest_row_of_a_path_is_read(embedded_store: Store) -> None:
    newer = entry("spine1", seen_ns=T0 + 1, dst=None, dst_nic="h2/eth0")
    insert(embedded_store, entry(), newer, entry(sport=PORT + 1, seen_ns=T0 - 1))
    (row,) = catalogue.read_paths(embedded_store, T0, T0 + 10 * SECOND).to_pylist()
    assert Path(**row) == entry("spine1", seen_ns=T0 + 1)


def test_the_catalogue_is_made_of_paths_and_probes(embedded_store: Store) -> None:
    topology = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
    empty = catalogue.read_catalogue(embedded_store, Circumstances(topology, T0 + 10 * SECOND))
    assert (empty.paths, empty.left_out) == ((), ())
    insert(embedded_store, entry(), entry(sport=PORT + 1), probe(1, "spine1"), probe(2, sport=PORT + 2))
    insert(embedded_store, *(lost(3 + index, sport=PORT + 2) for index in range(3)))
    found = catalogue.read_catalogue(embedded_store, Circumstances(topology, T0 + 10 * SECOND))
    assert [(path.sport, path.links[1]) for path in found.paths] == [
        (PORT, "leaf0--spine1"),
        (PORT + 1, "leaf0--spine0"),
    ]
    assert [(each.path.sport, each.why) for each in found.left_out] == [(PORT + 2, "dead")]
