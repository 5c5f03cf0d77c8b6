"""A scenario's shapes can be built, its parts are there, and it can be told at other sizes."""

import re
from typing import Any

import pytest

from lockstep.errors import BadScenario, NotPresent
from lockstep.topology import TopologyIndex
from simulator.scenario import (
    Doing,
    JobShape,
    Layout,
    Scenario,
    build_topology,
    check_scenario,
    find_scenario,
    list_scenarios,
    parse_family,
    parse_scenario,
    resize_scenario,
)
from tests.simulator.build import cluster, scenario, slow


def test_fabric_of_a_scenario_has_its_hosts_and_is_not_oversubscribed() -> None:
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


def test_layout_is_filled_up_with_replicas_and_spares_are_not_of_the_job() -> None:
    told = scenario(job=JobShape(layout=Layout(tp=2, pp=2, ep=2)))
    assert told.layout == (2, 1, 4, 2, 2)
    check_scenario(told)
    check_scenario(told := scenario(slow("nic:h5/eth1", 0.5), cluster=cluster(spares=2)))
    assert (len(build_topology(told.cluster).hosts), told.ranks) == (6, 16)
    job = JobShape(compute_ms=50.0, allreduce_mb=(64, 32))
    assert [(doing.do, doing.mb) for doing in job.steps] == [("compute", 0), ("AllReduce", 64), ("AllReduce", 32)]
    own = (Doing(do="AllToAll", mb=8, group="ep"),)
    assert JobShape(step=own).steps == own


@pytest.mark.parametrize(
    ("lines", "timestamp"),
    [
        (["at 20 s fail nic:h3/eth1 to 50 %", "at 9 s fail gpu:h1/0 stuck"], 9),
        (["at 9 s pause rank:3 2 s", "at 10 s restart without h3 after 5 s", "at 20 s fail fabric to 50 %"], 20),
        (["at 9 s pause 2 s", "at 10 s restart after 5 s", "at 11 s second mix", "at 12 s heal"], None),
        ([], None),
    ],
)
def test_scenario_breaks_at_its_first_failure(lines: list[str], timestamp: float | None) -> None:
    assert scenario(*lines).breaks_at_s == timestamp


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
    with pytest.raises(BadScenario) as refusal:
        check_scenario(scenario(**fields))
    assert str(refusal.value) == f"scenario test: {complaint}"


def test_everything_that_does_not_fit_is_said_at_once() -> None:
    with pytest.raises(BadScenario, match=r"do not fill leaves of 2; .* are not 20 ranks"):
        check_scenario(scenario(cluster=cluster(hosts=5), job=JobShape(layout=Layout(tp=3))))
    odd = scenario(slow("nic:h9/eth0", 0.5), slow("gpu:h0/0", 0.5), "at 1 s restart with h7 for h0 after 1 s")
    with pytest.raises(BadScenario, match=r"nic:h9/eth0, host:h7$"):
        check_scenario(odd)


THERE = "nic:h3/eth1 gpu:h3/3 pcie:h3/3 nvlink:h0/0 host:h3 rank:15 switch:leaf1 link:h3/eth1--leaf1"
NOT_THERE = "nic:h4/eth0 nic:h3/eth2 gpu:h3/4 pcie:h4/0 nvlink:h0/4 host:h4 rank:16 switch:leaf2 link:spine0--leaf0"


def test_only_parts_that_are_there_can_break() -> None:
    for part in (*THERE.split(), "link:leaf0--spine0", "switch:spine0", "fabric"):
        check_scenario(scenario(slow(part, 0.5)))
    for part in (*NOT_THERE.split(), "link:h3/eth1--leaf0"):
        with pytest.raises(BadScenario, match=f"^scenario test: it breaks what its cluster does not have: {part}$"):
            check_scenario(scenario(slow(part, 0.5)))


# Other sizes.


@pytest.mark.parametrize("ranks", [16, 32, 256])
def test_scenario_keeps_its_hosts_at_any_size_and_has_more_replicas(ranks: int) -> None:
    told = scenario(slow("nic:h3/eth1", 0.5))
    larger = resize_scenario(told, ranks)
    assert larger.ranks == ranks
    expected: dict[str, Any] = told.cluster.model_dump() | {"hosts": ranks // 4}
    assert (larger.cluster.model_dump(), larger.timeline) == (expected, told.timeline)
    told = scenario(job=JobShape(layout=Layout(tp=4, dp=2, pp=2)))
    assert resize_scenario(told, 64).layout == (4, 1, 8, 2, 1)


@pytest.mark.parametrize(
    ("ranks", "complaint"),
    [
        (4, "has 4 GPUs a host: give a multiple of that, two hosts at least"),
        (-16, "two hosts at least"),
        (18, "give a multiple of that"),
        (12, "3 hosts do not fill leaves of 2"),
        (8, "breaks what its cluster does not have: nic:h3/eth1"),
    ],
)
def test_size_that_the_scenario_cannot_have_is_refused(ranks: int, complaint: str) -> None:
    with pytest.raises(BadScenario, match=complaint):
        resize_scenario(scenario(slow("nic:h3/eth1", 0.5)), ranks)


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


def family(text: str = TEXT) -> dict[str, Scenario]:
    return {told.name: told for told in parse_family(text, "case")}


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def refusal(text: str) -> str:
    with pytest.raises(BadScenario) as caught:
        parse_family(text, "case")
    assert str(caught.value).startswith("scenario case")
    return str(caught.value)


# A family.


def test_family_is_told_in_every_strength_and_on_every_transport_with_words_filled_in() -> None:
    names = ("case-mild-ib", "case-strong-ib", "case-healthy-ib")
    assert list(family()) == [*names, *(name.replace("ib", "socket") for name in names)]
    assert {told.family for told in family().values()} == {"case"}
    assert all(name.endswith(f"-{told.cluster.transport}") for name, told in family().items())
    for strength, rate, compute_ms in (("mild", 80, 40.0), ("strong", 20, 50.0)):
        told = family()[f"case-{strength}-ib"]
        filled_in = told.summary, told.timeline[0].amount, told.job.compute_ms
        assert filled_in == (f"a NIC sends at {rate} % of its rate", rate / 100, compute_ms)
    named = family(changed(TEXT, 'nic:h3/eth1"\nside', 'job:{scenario}"\nside'))
    assert named["case-strong-socket"].expect[0].component == "job:case-strong-socket"


def test_in_the_healthy_twin_nothing_breaks_but_the_job_does_the_same() -> None:
    mild, twin = family()["case-mild-ib"], family()["case-healthy-ib"]
    assert (twin.cluster, twin.job, twin.duration_s) == (mild.cluster, mild.job, mild.duration_s)
    assert ([fault.effect for fault in twin.timeline], twin.expect) == (["pause"], ())
    assert twin.summary == "a NIC sends at 80 % of its rate: the healthy twin, in which nothing breaks"
    benign = changed(TEXT, TEXT[TEXT.index("[[expect]]") :], "")
    assert list(family(benign)) == ["case-mild-ib", "case-strong-ib", "case-mild-socket", "case-strong-socket"]


def test_family_without_strengths_and_transports_is_one_scenario() -> None:
    (told,) = parse_family(ONE, "case")
    assert told == parse_scenario(ONE, "case")
    assert (told.name, told.family, told.ranks, told.cluster.transport) == ("case", "case", 16, "ib")
    assert told.timeline[0].part == told.expect[0].component == "nic:h3/eth1"
    assert told.noise.compute > 0


def test_cluster_and_job_may_be_like_a_known_one_and_no_other() -> None:
    text = 'summary = "s"\nduration_s = 1\n[cluster]\nlike = "hall"\nspines = 2\n[job]\nlike = "ddp"'
    told = parse_scenario(text, "case")
    hall = find_scenario("nic-tx-mild-ib").cluster
    assert told.cluster == hall.model_copy(update={"spines": 2, "transport": "ib"})
    assert told.job == find_scenario("gpu-straggler-mild-ib").job
    unknown = r"scenario case: there is no cluster 'hell' to be like; there are .*hall"
    assert re.search(unknown, refusal('[cluster]\nlike = "hell"'))


# What cannot be told.


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("nic:h3/eth1 tx", "nic:h4/eth0 tx", "breaks what its cluster does not have: nic:h4/eth0"),
        ("nic:h3/eth1 tx", "gpu:h3/0 tx", "only a NIC or a link has a side"),
        ("nic:h3/eth1 tx", "fan:h3/0", "'at 20 s fail fan:h3/0 to 50 %' is not understood"),
        ("at 20 s", "soon", "does not begin with a moment"),
        ("nic_gbps = 100.0", "nic_gbps = inf", r"cluster\.nic_gbps: Input should be a finite number"),
        ("duration_s = 60", "duration_s = inf", "duration_s: Input should be a finite number"),
        ("hosts = 4", "hosts = 5", "5 hosts do not fill leaves of 2"),
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


def test_everything_that_is_wrong_is_said_at_once_and_in_which_strength() -> None:
    said = refusal(changed(ONE, "spines = 2", "spines = 0").replace('side = "tx"', 'side = "up"'))
    assert re.search(r"cluster\.spines.*expect\.0\.side", said)
    assert refusal(changed(TEXT, "rate = 20", 'rate = "few"')).startswith("scenario case-strong-ib: ")


def test_family_has_a_plain_name() -> None:
    for name in ("", "Case", "a/b", "-case", "a b"):
        with pytest.raises(BadScenario, match="a name has small letters, digits and dashes"):
            parse_family(TEXT, name)


# Those that come with Lockstep; what they tell is checked in test_scenarios.py.


def test_there_are_scenarios_in_the_order_of_their_names_and_an_unknown_one_is_named_with_what_may_be_meant() -> None:
    names = [told.name for told in list_scenarios()]
    assert names == sorted(names)
    assert {"healthy", "nic-half-speed"} <= set(names)
    assert all(find_scenario(name).name == name for name in names)
    for name in ("gone", "", "../scenario", "healthy.toml", "nul\0", "shapes", "nic-tx"):
        with pytest.raises(NotPresent, match=r"there is no scenario .*; .*`lockstep scenario list` shows all"):
            find_scenario(name)
    with pytest.raises(NotPresent, match=r"did you mean 'nic-half-speed'"):
        find_scenario("nic-halfspeed")
