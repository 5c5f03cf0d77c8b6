"""A story's shapes can be built, its parts are there, and it can be told at other sizes."""

from typing import Any

import pytest

from lockstep.errors import BadStory
from lockstep.sim.story import Doing, JobShape, Layout, build_topology, check_story, resize_story
from lockstep.topology import TopologyIndex
from tests.lockstep.sim.build import cluster, slow, story


def test_fabric_of_a_story_has_its_hosts_and_is_not_oversubscribed() -> None:
    shape = cluster(hosts=6, hosts_per_leaf=3, spines=3, nics_per_host=2, nic_gbps=100.0)
    topology = build_topology(shape)
    assert len(topology.hosts) == 6
    assert [switch.id for switch in topology.switches] == ["leaf0", "leaf1", "spine0", "spine1", "spine2"]
    index = TopologyIndex(topology)
    assert [index.leaf_of(f"h{host}", "eth1") for host in range(6)] == ["leaf0"] * 3 + ["leaf1"] * 3
    rates = {link.id: link.gbps for link in topology.links}
    assert sum(rates[f"leaf0--spine{spine}"] for spine in range(3)) == pytest.approx(3 * 2 * rates["h0/eth0--leaf0"])


@pytest.mark.parametrize(
    ("fabric", "leaf"), [("leaf_spine", "leaf1"), ("rails", "pod1-leaf1"), ("dual_plane", "plane1-leaf1")]
)
def test_up_links_of_a_leaf_carry_what_its_nics_send_in_every_fabric(fabric: str, leaf: str) -> None:
    topology = build_topology(cluster(fabric=fabric))
    below = sum(link.gbps for link in topology.links if link.b == leaf)
    above = sum(link.gbps for link in topology.links if link.a == leaf)
    assert below == pytest.approx(above)
    assert TopologyIndex(topology).leaf_of("h3", "eth1") == leaf


def test_spares_are_hosts_of_the_fabric_but_not_of_the_job() -> None:
    told = story(slow("nic:h5/eth1", 0.5), cluster=cluster(spares=2))
    check_story(told)
    assert (len(build_topology(told.cluster).hosts), told.ranks) == (6, 16)


def test_layout_is_filled_up_with_replicas() -> None:
    told = story(job=JobShape(layout=Layout(tp=2, pp=2, ep=2)))
    assert told.layout == (2, 1, 4, 2, 2)
    check_story(told)


def test_plain_job_computes_and_reduces_its_buckets() -> None:
    job = JobShape(compute_ms=50.0, allreduce_mb=(64, 32))
    assert [(doing.do, doing.mb) for doing in job.steps] == [("compute", 0), ("AllReduce", 64), ("AllReduce", 32)]
    own = (Doing(do="AllToAll", mb=8, group="ep"),)
    assert JobShape(step=own).steps == own


@pytest.mark.parametrize(
    ("lines", "moment"),
    [
        (["at 20 s fail nic:h3/eth1 to 50 %", "at 9 s fail gpu:h1/0 stuck"], 9),
        (["at 9 s pause rank:3 2 s", "at 10 s restart without h3 after 5 s", "at 20 s fail fabric to 50 %"], 20),
        (["at 9 s pause 2 s", "at 10 s restart after 5 s", "at 11 s second mix", "at 12 s heal"], None),
        ([], None),
    ],
)
def test_story_breaks_at_its_first_failure(lines: list[str], moment: float | None) -> None:
    assert story(*lines).breaks_at_s == moment


# What does not fit together.


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"cluster": cluster(hosts=5)}, "5 hosts do not fill leaves of 2"),
        ({"cluster": cluster(spares=1)}, "5 hosts do not fill leaves of 2"),
        ({"cluster": cluster(nics_per_host=3)}, "4 GPUs do not spread evenly over 3 NICs"),
        ({"job": JobShape(layout=Layout(tp=3))}, "tp 3 x cp 1 x dp 5 x pp 1 are not 16 ranks"),
        ({"job": JobShape(layout=Layout(tp=4, dp=2))}, "tp 4 x cp 1 x dp 2 x pp 1 are not 16 ranks"),
        ({"job": JobShape(layout=Layout(tp=4, ep=3))}, "ep 3 does not divide dp 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadStory) as refusal:
        check_story(story(**fields))
    assert str(refusal.value) == f"story test: {complaint}"


def test_everything_that_does_not_fit_is_said_at_once() -> None:
    with pytest.raises(BadStory, match=r"do not fill leaves of 2; .* are not 20 ranks"):
        check_story(story(cluster=cluster(hosts=5), job=JobShape(layout=Layout(tp=3))))


@pytest.mark.parametrize(
    "part",
    ["nic:h4/eth0", "nic:h3/eth2", "gpu:h3/4", "pcie:h4/0", "nvlink:h0/4", "host:h4", "rank:16", "switch:leaf2"]
    + ["link:h3/eth1--leaf0", "link:spine0--leaf0"],
)
def test_part_that_is_not_there_cannot_break(part: str) -> None:
    with pytest.raises(BadStory, match=f"^story test: it breaks what its cluster does not have: {part}$"):
        check_story(story(slow(part, 0.5)))


@pytest.mark.parametrize(
    "part",
    ["nic:h3/eth1", "gpu:h3/3", "pcie:h3/3", "nvlink:h0/0", "host:h3", "rank:15", "switch:leaf1", "switch:spine0"]
    + ["link:h3/eth1--leaf1", "link:leaf0--spine0", "fabric"],
)
def test_part_that_is_there_can_break(part: str) -> None:
    check_story(story(slow(part, 0.5)))


def test_all_unknown_parts_are_named() -> None:
    odd = story(slow("nic:h9/eth0", 0.5), slow("gpu:h0/0", 0.5), "at 1 s restart with h7 for h0 after 1 s")
    with pytest.raises(BadStory, match=r"nic:h9/eth0, host:h7$"):
        check_story(odd)


# Other sizes.


@pytest.mark.parametrize("ranks", [16, 32, 256])
def test_story_keeps_its_hosts_at_any_size(ranks: int) -> None:
    told = story(slow("nic:h3/eth1", 0.5))
    larger = resize_story(told, ranks)
    assert larger.ranks == ranks
    expected: dict[str, Any] = told.cluster.model_dump() | {"hosts": ranks // 4}
    assert larger.cluster.model_dump() == expected
    assert larger.timeline == told.timeline


def test_larger_story_has_more_replicas() -> None:
    told = story(job=JobShape(layout=Layout(tp=4, dp=2, pp=2)))
    assert resize_story(told, 64).layout == (4, 1, 8, 2, 1)


@pytest.mark.parametrize(
    ("ranks", "complaint"),
    [
        (4, "has 4 GPUs a host: give a multiple of that, two hosts at least"),
        (0, "two hosts at least"),
        (-16, "two hosts at least"),
        (18, "give a multiple of that"),
        (12, "3 hosts do not fill leaves of 2"),
        (8, "breaks what its cluster does not have: nic:h3/eth1"),
    ],
)
def test_size_that_the_story_cannot_have_is_refused(ranks: int, complaint: str) -> None:
    with pytest.raises(BadStory, match=complaint):
        resize_story(story(slow("nic:h3/eth1", 0.5)), ranks)
