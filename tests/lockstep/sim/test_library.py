"""Families of stories are told in every strength and on every transport; nonsense is refused with its place."""

import re

import pytest

from lockstep.errors import BadStory, NotPresent
from lockstep.sim.library import find_story, list_stories, parse_family, parse_story
from lockstep.sim.story import Story

TEXT = """
summary = "a NIC sends at {rate} % of its rate"
duration_s = 60
transports = ["ib", "socket"]
timeline = ["at 20 s fail nic:h3/eth1 tx to {rate} %", "at 30 s pause 2 s", "at 50 s heal"]

[strengths]
mild = { rate = 80, ms = 40.0 }
strong = { rate = 20, ms = 50.0 }

[cluster]
hosts = 4
gpus_per_host = 4
nics_per_host = 2
hosts_per_leaf = 2
spines = 2
nic_gbps = 100.0

[job]
compute_ms = "{ms}"
allreduce_mb = [64, 32]

[[expect]]
class = "comm_slow"
component = "nic:h3/eth1"
side = "tx"
within_s = 30.0
"""
ONE = TEXT.replace('transports = ["ib", "socket"]\n', "").replace("{rate}", "50").replace('"{ms}"', "50.0")
ONE = re.sub(r"\[strengths\]\n.*\n.*\n", "", ONE)


def family(text: str = TEXT) -> dict[str, Story]:
    return {told.name: told for told in parse_family(text, "case")}


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def refusal(text: str) -> str:
    with pytest.raises(BadStory) as caught:
        parse_family(text, "case")
    assert str(caught.value).startswith("story case")
    return str(caught.value)


# A family.


def test_family_is_told_in_every_strength_and_on_every_transport() -> None:
    names = ("case-mild-ib", "case-strong-ib", "case-healthy-ib")
    assert list(family()) == [*names, *(name.replace("ib", "socket") for name in names)]
    assert {told.family for told in family().values()} == {"case"}
    assert {name: told.cluster.transport for name, told in family().items() if "mild" in name} == {
        "case-mild-ib": "ib",
        "case-mild-socket": "socket",
    }


def test_words_of_a_strength_are_filled_in_with_their_type() -> None:
    mild, strong = family()["case-mild-ib"], family()["case-strong-ib"]
    assert (mild.summary, mild.timeline[0].amount) == ("a NIC sends at 80 % of its rate", 0.8)
    assert (strong.summary, strong.timeline[0].amount) == ("a NIC sends at 20 % of its rate", 0.2)
    assert (mild.job.compute_ms, strong.job.compute_ms) == (40.0, 50.0)


def test_story_can_name_its_own_job() -> None:
    told = family(changed(TEXT, 'nic:h3/eth1"\nside', 'job:{story}"\nside'))
    assert told["case-strong-socket"].expect[0].component == "job:case-strong-socket"


def test_in_the_healthy_twin_nothing_breaks_but_the_job_does_the_same() -> None:
    mild, twin = family()["case-mild-ib"], family()["case-healthy-ib"]
    assert (twin.cluster, twin.job, twin.duration_s) == (mild.cluster, mild.job, mild.duration_s)
    assert ([turn.effect for turn in twin.timeline], twin.expect) == (["pause"], ())
    assert twin.summary == "a NIC sends at 80 % of its rate: the healthy twin, in which nothing breaks"


def test_family_without_expectations_needs_no_twin() -> None:
    benign = changed(TEXT, TEXT[TEXT.index("[[expect]]") :], "")
    assert list(family(benign)) == ["case-mild-ib", "case-strong-ib", "case-mild-socket", "case-strong-socket"]


def test_family_without_strengths_and_transports_is_one_story() -> None:
    (told,) = parse_family(ONE, "case")
    assert told == parse_story(ONE, "case")
    assert (told.name, told.family, told.ranks, told.cluster.transport) == ("case", "case", 16, "ib")
    assert told.timeline[0].part == told.expect[0].component == "nic:h3/eth1"
    assert told.noise.compute > 0


def test_cluster_and_job_may_be_like_a_known_one() -> None:
    told = parse_story(
        'summary = "s"\nduration_s = 1\n[cluster]\nlike = "hall"\nspines = 2\n[job]\nlike = "ddp"', "case"
    )
    hall = find_story("nic-tx-mild-ib").cluster
    assert told.cluster == hall.model_copy(update={"spines": 2, "transport": "ib"})
    assert told.job == find_story("gpu-straggler-mild-ib").job


def test_unknown_shape_is_answered_with_those_there_are() -> None:
    assert re.search(
        r"story case: there is no cluster 'hell' to be like; there are .*hall", refusal('[cluster]\nlike = "hell"')
    )


# What cannot be told.


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("nic:h3/eth1 tx", "nic:h4/eth0 tx", "breaks what its cluster does not have: nic:h4/eth0"),
        ("nic:h3/eth1 tx", "gpu:h3/0 tx", "only a NIC or a link has a side"),
        ("nic:h3/eth1 tx", "fan:h3/0", "'at 20 s fail fan:h3/0 to 50 %' is not understood"),
        ("to 50 %", "to half", "is not understood"),
        ("at 20 s", "soon", "does not begin with a moment"),
        ("nic_gbps = 100.0", "nic_gbps = inf", r"cluster\.nic_gbps: Input should be a finite number"),
        ("duration_s = 60", "duration_s = inf", "duration_s: Input should be a finite number"),
        ("hosts = 4", "hosts = 5", "5 hosts do not fill leaves of 2"),
        ("nics_per_host = 2", "nics_per_host = 3", "4 GPUs do not spread evenly over 3 NICs"),
        ("hosts = 4", "hosts = 1", r"cluster\.hosts: Input should be greater than or equal to 2"),
        ("[64, 32]", "[]", r"job\.allreduce_mb: Tuple should have at least 1 item"),
        ("[64, 32]", "[64, -32]", r"job\.allreduce_mb\.1: Input should be greater than or equal to 1"),
        ("compute_ms = 50.0", "compute_ms = 50.0\nmood = 1", r"job\.mood: Extra inputs are not permitted"),
        ("compute_ms = 50.0", 'step = [{do = "sleep"}]', r"job\.step\.0\.do: Input should be 'compute'"),
        ("[job]", "[job]\nlayout = { tp = 0 }", r"job\.layout\.tp: Input should be greater than or equal to 1"),
        ('class = "comm_slow"', 'class = "sad"', r"expect\.0\.class: Input should be 'comm_slow'"),
        ('side = "tx"', 'side = "left"', r"expect\.0\.side: Input should be 'tx' or 'rx'"),
        ("within_s = 30.0", "within_s = 0", r"expect\.0\.within_s: Input should be greater than 0"),
        ("[cluster]", "[clusters]", r"cluster\.hosts: Field required.*clusters: Extra inputs are not permitted"),
        ("hosts = 4", "hosts = ", "is not TOML: Invalid value"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_place(old: str, new: str, complaint: str) -> None:
    assert re.search(complaint, refusal(changed(ONE, old, new)))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = refusal(changed(ONE, "spines = 2", "spines = 0").replace('side = "tx"', 'side = "up"'))
    assert "cluster.spines" in said
    assert "expect.0.side" in said


def test_story_that_is_wrong_in_one_strength_is_named() -> None:
    assert refusal(changed(TEXT, "rate = 20", 'rate = "few"')).startswith("story case-strong-ib: ")


@pytest.mark.parametrize("name", ["", "Case", "a/b", "-case", "a b", "../story"])
def test_family_has_a_plain_name(name: str) -> None:
    with pytest.raises(BadStory, match="a name has small letters, digits and dashes"):
        parse_family(TEXT, name)


# Those that come with Lockstep; what they tell is checked in test_stories.py.


def test_there_are_stories_in_the_order_of_their_names() -> None:
    names = [told.name for told in list_stories()]
    assert names == sorted(names)
    assert {"healthy", "nic-half-speed"} <= set(names)
    assert all(find_story(name).name == name for name in names)


@pytest.mark.parametrize(
    "name", ["gone", "", "../story", "healthy.toml", "Healthy", "a/b", "nul\0", "shapes", "nic-tx"]
)
def test_unknown_story_is_answered_with_the_families_there_are(name: str) -> None:
    with pytest.raises(NotPresent, match=r"there is no story .* families: .*healthy.*nic-tx"):
        find_story(name)
