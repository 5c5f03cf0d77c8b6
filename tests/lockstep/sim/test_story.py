"""Stories are data: each that comes with Lockstep can be told and has a healthy twin; nonsense is refused."""

import re
from typing import Any

import pytest

from lockstep.errors import BadStory, NotPresent
from lockstep.sim.story import Story, build_topology, check_story, find_story, list_stories, parse_story, resize_story
from lockstep.topology import TopologyIndex, gpu_name, host_name, link_name, nic_name, switch_name
from tests.lockstep.sim.build import cluster, slow, story

STORIES = list_stories()
every_story = pytest.mark.parametrize("told", STORIES, ids=lambda told: told.name)

TEXT = """
summary = "a NIC at half its rate"
duration_s = 60

[cluster]
hosts = 4
gpus_per_host = 4
nics_per_host = 2
hosts_per_leaf = 2
spines = 2
nic_gbps = 100.0

[job]
compute_ms = 50.0
allreduce_mb = [64, 32]

[[timeline]]
at_s = 20.0
part = "nic:h3/eth1"
rate = 0.5

[[expect]]
class = "comm_slow"
component = "nic:h3/eth1"
within_s = 30.0
"""


def refusal(text: str) -> str:
    with pytest.raises(BadStory) as caught:
        parse_story(text, "case")
    assert str(caught.value).startswith("story case")
    return str(caught.value)


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new)


def parts_of(told: Story) -> set[str]:
    topology = build_topology(told.cluster)
    hosts = topology.hosts
    return {
        *(host_name(host.id) for host in hosts),
        *(nic_name(host.id, nic.id) for host in hosts for nic in host.nics),
        *(gpu_name(host.id, gpu.index) for host in hosts for gpu in host.gpus),
        *(switch_name(switch.id) for switch in topology.switches),
        *(link_name(link) for link in topology.links),
    }


# Those that come with Lockstep.


def test_there_are_stories_in_the_order_of_their_names() -> None:
    names = [told.name for told in STORIES]
    assert names == sorted(names)
    assert {"healthy", "nic-half-speed"} <= set(names)


@every_story
def test_story_is_found_by_its_name(told: Story) -> None:
    assert find_story(told.name) == told
    assert told.summary


@every_story
def test_story_with_a_fault_has_a_healthy_twin(told: Story) -> None:
    twins = [
        other
        for other in STORIES
        if (other.cluster, other.job, other.noise) == (told.cluster, told.job, told.noise)
        and not (other.timeline or other.expect)
    ]
    assert len(twins) == 1
    assert twins[0].duration_s >= told.duration_s


@every_story
def test_story_expects_a_verdict_exactly_when_something_breaks(told: Story) -> None:
    breaks = any(turn.rate < 1 for turn in told.timeline)
    assert bool(told.expect) == breaks
    assert all(turn.at_s < told.duration_s for turn in told.timeline)


@every_story
def test_expected_parts_are_parts_of_the_cluster(told: Story) -> None:
    jobs = {f"job:{told.name}"}
    named = {name for right in told.expect for name in (right.component, *right.also_right)}
    assert named <= parts_of(told) | jobs


@every_story
def test_expected_verdict_can_come_before_the_story_ends(told: Story) -> None:
    first = min((turn.at_s for turn in told.timeline), default=0.0)
    assert all(first + right.within_s <= told.duration_s for right in told.expect)


@pytest.mark.parametrize("name", ["gone", "", "../story", "healthy.toml", "Healthy", "a/b", "nul\0"])
def test_unknown_story_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(NotPresent, match=r"there is no story .*; there are: .*healthy"):
        find_story(name)


# What can be told.


def test_text_becomes_a_story_with_the_usual_noise() -> None:
    told = parse_story(TEXT, "case")
    assert (told.name, told.ranks, told.cluster.transport) == ("case", 16, "ib")
    assert told.timeline[0].part == told.expect[0].component == "nic:h3/eth1"
    assert told.noise.compute > 0


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
    ("old", "new", "complaint"),
    [
        ("nic:h3/eth1", "nic:h4/eth0", "breaks what its cluster does not have: nic:h4/eth0"),
        ("nic:h3/eth1", "nic:h3/eth2", "breaks what its cluster does not have: nic:h3/eth2"),
        ("nic:h3/eth1", "gpu:h3/4", "breaks what its cluster does not have: gpu:h3/4"),
        ("nic:h3/eth1", "fan:h3/0", r"timeline\.0\.part: String should match pattern"),
        ("rate = 0.5", "rate = 0.0", r"timeline\.0\.rate: Input should be greater than 0"),
        ("rate = 0.5", "rate = 1.5", r"timeline\.0\.rate: Input should be less than or equal to 1"),
        ("rate = 0.5", 'rate = 0.5\nside = "left"', r"timeline\.0\.side: Input should be 'tx' or 'rx'"),
        ("at_s = 20.0", "at_s = nan", r"timeline\.0\.at_s: Input should be a finite number"),
        ("nic_gbps = 100.0", "nic_gbps = inf", r"cluster\.nic_gbps: Input should be a finite number"),
        ("duration_s = 60", "duration_s = inf", "duration_s: Input should be a finite number"),
        ("hosts = 4", "hosts = 5", "5 hosts do not fill leaves of 2"),
        ("nics_per_host = 2", "nics_per_host = 3", "4 GPUs do not spread evenly over 3 NICs"),
        ("hosts = 4", "hosts = 1", r"cluster\.hosts: Input should be greater than or equal to 2"),
        ("[64, 32]", "[]", r"job\.allreduce_mb: Tuple should have at least 1 item"),
        ("[64, 32]", "[64, -32]", r"job\.allreduce_mb\.1: Input should be greater than or equal to 1"),
        ("compute_ms = 50.0", "compute_ms = 50.0\nmood = 1", r"job\.mood: Extra inputs are not permitted"),
        ('class = "comm_slow"', 'class = "sad"', r"expect\.0\.class: Input should be 'comm_slow'"),
        ("[job]", "[jobs]", "job: Field required; jobs: Extra inputs are not permitted"),
        ("hosts = 4", "hosts = ", "is not TOML: Invalid value"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_place(old: str, new: str, complaint: str) -> None:
    assert re.search(complaint, refusal(changed(old, new)))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = refusal(changed("spines = 2", "spines = 0").replace("rate = 0.5", "rate = 7"))
    assert "cluster.spines" in said
    assert "timeline.0.rate" in said


def test_all_unknown_parts_are_named() -> None:
    odd = story(slow("nic:h9/eth0", 0.5), slow("gpu:h0/0", 0.5), slow("gpu:h9/0", 0.5))
    with pytest.raises(BadStory, match=r"nic:h9/eth0, gpu:h9/0$"):
        check_story(odd)


# Other sizes.


@pytest.mark.parametrize("ranks", [16, 32, 256])
def test_story_keeps_its_hosts_at_any_size(ranks: int) -> None:
    told = parse_story(TEXT, "case")
    larger = resize_story(told, ranks)
    assert larger.ranks == ranks
    expected: dict[str, Any] = told.cluster.model_dump() | {"hosts": ranks // 4}
    assert larger.cluster.model_dump() == expected
    assert larger.timeline == told.timeline
    assert parts_of(told) & {"link:h3/eth1--leaf1", "nic:h3/eth1"} <= parts_of(larger)


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
        resize_story(parse_story(TEXT, "case"), ranks)
