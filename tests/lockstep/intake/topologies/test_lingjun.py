"""The Lingjun table becomes three tiers; a leaf's number counts within the switch above it."""

import pytest

from tests.lockstep.intake.topologies.surveying import (
    TREE_LINKS,
    TREE_TIERS,
    complaints,
    links_of,
    read,
    said,
    source,
    stored,
    tiers_of,
)


def test_table_becomes_three_tiers() -> None:
    imported = read("lingjun", stored("lingjun.csv"))
    assert links_of(imported.topology) == {*TREE_LINKS, "spine1--G1"}
    assert tiers_of(imported.topology) == {**TREE_TIERS, "G1": "core"}


def test_same_number_below_two_switches_is_two_leaves() -> None:
    imported = read("lingjun", "ip,DSW,PSW,ASW\na,G,P1,S1\nb,G,P2,S1\nc,G,P2,S2\n")
    assert links_of(imported.topology) == {
        "a/nic0--P1-S1",
        "b/nic0--P2-S1",
        "c/nic0--S2",
        "P1-S1--P1",
        "P2-S1--P2",
        "S2--P2",
        "P1--G",
        "P2--G",
    }
    assert said(imported, "S1 stand below several PSWs: taken for another leaf below each")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no column ip, DSW, PSW, ASW"),
        ("ip,PSW\na,b\n", "has no column DSW, ASW"),
        ("ip,DSW,PSW,ASW\na,G,P\n", "line 2: has an empty column or too few"),
        ("ip,DSW,PSW,ASW\na,G,P,S\na,G,P,T\n", "host a is under switch S and under switch T, but has one leaf"),
        ("ip,DSW,PSW,ASW\na,G,G,S\n", "switch G is its own ancestor: G > G"),
    ],
)
def test_table_that_cannot_be_is_refused(text: str, reason: str) -> None:
    assert complaints(("lingjun", [source(text, "topo.csv")])) == [f"topo.csv: {reason}"]
