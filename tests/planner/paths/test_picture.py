"""The picture of link loads is well-formed, has every link, and says what it shows."""

from xml.etree import ElementTree

import numpy as np

from lockstep.fabrics import fat_tree, leaf_spine
from planner.paths.network import build_network, without
from planner.paths.picture import draw_loads
from planner.paths.planning import plan_paths
from tests.planner.paths.fabrics import some_flows

_SVG = "{http://www.w3.org/2000/svg}"


def test_every_pair_of_switches_has_a_square_with_its_figures() -> None:
    network = without(build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=2)), ["leaf0--spine0"])
    plan = plan_paths(network, some_flows(network, 20, seed=1))
    drawn = ElementTree.fromstring(draw_loads(network, {"<before>": plan.load * 2, "now": plan.load}, "Loads & more"))
    titles = [title.text or "" for title in drawn.iter(f"{_SVG}title")]
    assert len(titles) == 2 * 8
    assert sum(title.endswith("dead") for title in titles) == 2
    assert "Loads & more" in [text.text for text in drawn.iter(f"{_SVG}text")]


def test_all_tiers_are_drawn() -> None:
    network = build_network(fat_tree(4))
    drawn = ElementTree.fromstring(draw_loads(network, {"idle": np.zeros(network.lanes)}, ""))
    assert len(list(drawn.iter(f"{_SVG}title"))) == 16 + 16
