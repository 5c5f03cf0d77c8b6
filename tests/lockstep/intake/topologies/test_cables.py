"""Cables are told by both ends, by one, or by somebody who sees no ports; who contradicts another is heard."""

from lockstep.intake.topologies.cables import Matched, match_cables
from lockstep.intake.topologies.survey import End, SeenCable


def cable(near: str, far: str, source: str = "x", up: bool = True) -> SeenCable:
    """Return what a source sees; ends are written a/p1, or a where the port is not known."""
    ends = [End(node, port or None) for node, _, port in (near.partition("/"), far.partition("/"))]
    return SeenCable(ends[0], ends[1], source, up=up)


def match(*claims: SeenCable, hosts: frozenset[str] = frozenset()) -> Matched:
    return match_cables(claims, hosts)


def found(*claims: SeenCable) -> list[tuple[str, str]]:
    matched = match(*claims)
    assert matched.complaints == []
    return sorted((str(one.a), str(one.b)) for one in matched.cables)


def test_cable_that_both_ends_tell_is_one() -> None:
    assert found(cable("a/1", "b/2"), cable("b/2", "a/1")) == [("a/1", "b/2")]


def test_cable_whose_far_port_is_told_by_the_far_end_is_one() -> None:
    assert found(cable("a/1", "b/2"), cable("b/2", "a")) == [("a/1", "b/2")]


def test_ends_that_each_know_their_own_port_only_are_put_together() -> None:
    assert found(cable("a/1", "b"), cable("b/2", "a")) == [("a/1", "b/2")]


def test_several_such_ends_are_put_together_in_order_and_that_is_said() -> None:
    matched = match(cable("a/1", "b"), cable("a/2", "b"), cable("b/7", "a"), cable("b/8", "a"))
    assert [(str(one.a), str(one.b)) for one in matched.cables] == [("a/1", "b/7"), ("a/2", "b/8")]
    assert matched.assumed == ["which of 2 ports of a and b belong together is not told: in order"]


def test_port_that_is_told_to_go_to_two_nodes_is_reported() -> None:
    matched = match(cable("a/1", "b", "x"), cable("a/1", "c", "y"))
    assert matched.complaints == [
        "a/1 is cabled to b as a/1 says in x and to c as a/1 says in y, but takes one cable"
    ]


def test_port_known_by_one_end_and_contradicted_by_both_others_is_reported() -> None:
    matched = match(cable("a/1", "b/2", "x"), cable("a/1", "c", "y"))
    assert matched.complaints == [
        "a/1 is cabled to c as a/1 says in y and to b/2 as a/1 says in x, but takes one cable"
    ]


def test_lines_of_one_source_are_parallel_cables_and_several_sources_tell_the_same() -> None:
    twice = (cable("a", "b", "x"), cable("a", "b", "x"))
    assert found(*twice) == [("a", "b"), ("a", "b")]
    assert found(*twice, cable("b", "a", "y")) == [("a", "b"), ("a", "b")]


def test_who_sees_no_ports_adds_nothing_where_a_cable_is_known() -> None:
    assert found(cable("a/1", "b/2"), cable("a", "b", "tree")) == [("a/1", "b/2")]


def test_who_sees_no_ports_contradicts_the_cables_of_two_nodes() -> None:
    matched = match(cable("a/1", "b/1"), cable("c/1", "d/1"), cable("a", "c", "tree"))
    assert matched.complaints == [
        "a and c are joined as tree says, but no cable goes from one to the other as x says"
    ]


def test_host_that_is_cabled_gets_no_other_cable_from_who_sees_no_ports() -> None:
    claims = (cable("h/1", "b/1"), cable("h", "rack", "tree"))
    assert len(match(*claims).cables) == 2
    assert len(match(*claims, hosts=frozenset({"h"})).complaints) == 1


def test_cable_is_down_where_anybody_says_so() -> None:
    (one,) = match(cable("a/1", "b/1"), cable("b/1", "a/1", up=False)).cables
    assert not one.up
