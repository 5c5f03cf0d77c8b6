"""Where a part is: what a technician walks to, and whom a drain would hit."""

from api.dashboard.whereabouts import Whereabouts, choose_ranks, find_cables, say_ranks
from api.reading.ranks import Rank
from lockstep.fabrics import leaf_spine


def test_ranks_of_the_host_are_meant_or_those_of_its_gpu() -> None:
    ranks = [Rank(rank=number, host=f"h{number // 4}", gpu=number % 4) for number in range(8)]
    assert choose_ranks("nic:h1/eth0", "h1", ranks) == [4, 5, 6, 7]
    assert choose_ranks("gpu:h1/2", "h1", ranks) == [6]


def test_nic_is_told_with_what_it_is_plugged_into() -> None:
    topology = leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=1)
    assert find_cables("nic:h1/eth1", topology) == ["plugged into leaf0"]
    assert find_cables("host:h1", topology) == []
    assert find_cables("nic:h1/eth1", None) == []


def test_place_is_one_line() -> None:
    place = Whereabouts("h3", "r7", (24, 25, 26), ("plugged into leaf1/12",), ("train",))
    assert str(place) == "host h3, rack r7, ranks 24 to 26; plugged into leaf1/12"


def test_many_ranks_that_are_no_row_are_cut_short() -> None:
    assert say_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert say_ranks([]) == ""
