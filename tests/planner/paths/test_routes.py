"""Probes of a port fold into its newest route, and into how well that is borne out."""

from typing import Any

from lockstep.records import Probe
from planner.paths.routes import FOLDED, fold_probes
from tests.builders import SECOND, T0
from tests.planner.paths.probed import PORT, lost, packets, probe


def fold(*probes: Probe) -> dict[str, Any]:
    (row,) = fold_probes(packets(*probes)).to_pylist()
    assert tuple(row) == FOLDED
    return {name: row[name] for name in FOLDED if name not in ("host", "src_nic", "dst", "dst_nic", "proto", "dport")}


def test_probes_that_agree_are_counted() -> None:
    assert fold(*(probe(second) for second in range(5))) == {
        "sport": PORT,
        "route": ["leaf0", "spine0", "leaf1"],
        "agreed": 5,
        "differing": 0,
        "returned": 0,
        "lost": 0,
        "lost_since": 0,
        "seen_ns": T0 + 4 * SECOND,
        "tried_ns": T0 + 4 * SECOND,
    }


def test_a_later_probe_contradicts_all_before() -> None:
    found = fold(probe(3, "spine1"), probe(1), probe(0))
    assert (found["route"], found["agreed"], found["differing"]) == (["leaf0", "spine1", "leaf1"], 1, 2)


def test_losses_before_the_route_was_taken_do_not_count_against_it() -> None:
    found = fold(probe(0), lost(1), lost(2), probe(3, "spine1"), lost(4), probe(5, "spine1"))
    assert (found["agreed"], found["lost"], found["lost_since"]) == (2, 1, 0)


def test_a_route_that_came_back_is_told_from_a_new_one() -> None:
    found = fold(probe(0), probe(1), probe(2, "spine1"), probe(3))
    assert (found["agreed"], found["differing"], found["returned"]) == (1, 1, 2)


def test_losses_at_the_end_are_counted_apart() -> None:
    found = fold(lost(0), probe(1), lost(2), lost(3))
    assert (found["lost"], found["lost_since"], found["agreed"]) == (2, 2, 1)
    assert (found["seen_ns"], found["tried_ns"]) == (T0 + SECOND, T0 + 3 * SECOND)


def test_routes_with_silent_hops_are_no_routes() -> None:
    found = fold(probe(0, "*"), probe(1, hops=[]))
    assert (found["route"], found["agreed"], found["seen_ns"], found["lost_since"]) == ([], 0, 0, 0)


def test_a_port_that_never_answered_has_the_route_that_was_lost() -> None:
    found = fold(lost(0), lost(1))
    assert (found["route"], found["agreed"], found["lost"], found["lost_since"]) == (
        ["leaf0", "spine0", "leaf1"],
        0,
        2,
        2,
    )
    assert (found["seen_ns"], found["tried_ns"]) == (0, T0 + SECOND)


def test_an_answer_tells_more_of_the_route_than_a_later_loss() -> None:
    found = fold(probe(0), lost(1, via="spine1"))
    assert found["route"] == ["leaf0", "spine0", "leaf1"]


def test_ports_destinations_and_protocols_are_kept_apart() -> None:
    rows = fold_probes(packets(probe(), probe(sport=PORT + 1), probe(proto="tcp"), probe(dst="h3"), probe(1)))
    assert sorted(rows["agreed"].to_pylist()) == [1, 1, 1, 2]


def test_no_probes_fold_into_no_rows() -> None:
    assert fold_probes(packets()).num_rows == 0
    assert tuple(fold_probes(packets()).column_names) == FOLDED
