"""Ill links lose their weight at once and get it back when they have been well for long enough."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.fabrics import leaf_spine
from lockstep.verdict import Impact, Verdict
from planner.paths.health import (
    Change,
    Evidence,
    HealthOptions,
    LinkHealth,
    judge_topology,
    judge_verdict,
    name_parts,
)
from planner.paths.network import build_network, with_rates
from tests.builders import SECOND
from tests.planner import build

FABRIC = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)  # 400 Gbit/s
PARTS = name_parts(FABRIC)
LINK = "leaf0--spine0"
HOLD_S = 10


def messages(second: float, weight: float, source: str = "port", link: str = LINK) -> Evidence:
    return Evidence(int(second * SECOND), link, source, weight, f"{source} says {weight:g} at {second:g}")


def watch(*evidence: Evidence, until_s: float = 0, options: HealthOptions | None = None) -> list[Change]:
    health, changes = LinkHealth(options or HealthOptions()), []
    for second in range(int(max(until_s, *(each.ts_ns / SECOND for each in evidence))) + 1):
        now_ns = second * SECOND
        news = [each for each in evidence if now_ns - SECOND < each.ts_ns <= now_ns]
        health, more = health.observe(news, now_ns)
        changes += more
    return changes


def steps(changes: list[Change]) -> list[tuple[float, float]]:
    return [(change.ts_ns / SECOND, change.after) for change in changes]


def flap(*times_s: int) -> list[Evidence]:
    """Return a link that goes down at some times, each time for a second."""
    return [each for at_s in times_s for each in (messages(at_s, 0.0), messages(at_s + 1, 1.0))]


@pytest.mark.parametrize(
    ("evidence", "most_hold_s", "expected"),
    [
        ([messages(3, 0.0)], None, [(3, 0.0)]),
        ([messages(1, 0.25)], None, [(1, 0.25)]),
        ([messages(1, 0.5, "verdict"), messages(1, 0.0), messages(2, 1.0, "other")], None, [(1, 0.0)]),  # the worst
        ([messages(1, 0.95)], None, []),  # small changes are not worth a plan
        ([messages(1, 0.5), messages(2, 0.45), messages(3, 0.55)], None, [(1, 0.5)]),
        ([messages(1, 0.05), messages(2, 0.0)], None, [(1, 0.05), (2, 0.0)]),  # but the last bit is
        ([messages(1, 0.0), messages(5, 1.0)], None, [(1, 0.0), (15, 1.0)]),
        # The hold time begins anew with each bad word.
        ([messages(at_s, at_s % 2.0) for at_s in (2, 5, 12, 13)], None, [(2, 0.0), (23, 1.0)]),
        # It doubles with each relapse, up to the most, and is forgiven after a while.
        (flap(0, 100, 200), None, [(0, 0.0), (11, 1.0), (100, 0.0), (121, 1.0), (200, 0.0), (241, 1.0)]),
        (flap(0, 20, 50), 25, [(0, 0.0), (11, 1.0), (20, 0.0), (41, 1.0), (50, 0.0), (76, 1.0)]),
        (flap(0, 70), 50, [(0, 0.0), (11, 1.0), (70, 0.0), (81, 1.0)]),
        ([messages(0, 0.5), messages(1, 0.95), messages(20, 1.0)], None, [(0, 0.5), (11, 0.95), (30, 1.0)]),
    ],
)
def test_a_link_loses_weight_at_once_and_gets_it_back_after_the_hold_time(
    evidence: list[Evidence], most_hold_s: float | None, expected: list[tuple[float, float]]
) -> None:
    options = HealthOptions(hold_s=HOLD_S, most_hold_s=most_hold_s) if most_hold_s else HealthOptions()
    assert steps(watch(*evidence, until_s=299, options=options)) == expected


def test_changes_say_why() -> None:
    changes = watch(*flap(0, 100, 200), until_s=299)
    assert (changes[0].before, changes[0].reason) == (1.0, "port says 0 at 0")
    assert changes[1].reason == "better for 10 s: port says 1 at 1"
    assert changes[-1].reason == "better for 40 s, after 2 relapses: port says 1 at 201"


def test_relapses_are_forgiven_also_when_nobody_looked_and_a_share_that_is_no_number_is_refused() -> None:
    health = LinkHealth(HealthOptions(hold_s=10, most_hold_s=50))
    for evidence, now_s in (([messages(0, 0.0)], 0), ([messages(1, 1.0)], 1), ([], 11), (flap(70), 71), ([], 81)):
        health, changes = health.observe(evidence, now_s * SECOND)
    assert steps(changes) == [(81, 1.0)]
    with pytest.raises(BadInput, match="port says of leaf0--spine0 that it carries a share of NaN"):
        LinkHealth().observe([messages(1, float("nan"))], SECOND)


EVIDENCE = st.builds(
    messages,
    st.integers(0, 200),
    st.floats(-1, 2),
    st.sampled_from(["port", "verdict"]),
    st.sampled_from([LINK, "leaf1--spine0"]),
)


@given(st.lists(EVIDENCE, max_size=30))
def test_weights_stay_between_nothing_and_all(evidence: list[Evidence]) -> None:
    health = LinkHealth()
    for second in range(0, 250, 10):
        news = [each for each in evidence if second - 10 < each.ts_ns / SECOND <= second]
        health, changes = health.observe(news, second * SECOND)
        assert all(0.0 <= weight < 1.0 for weight in health.weights.values())
        assert all(change.before != change.after and change.reason for change in changes)


@given(st.lists(EVIDENCE, max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_evidence_does_not_matter(evidence: list[Evidence], chance: Any) -> None:
    shuffled = list(evidence)
    chance.shuffle(shuffled)
    assert LinkHealth().observe(evidence, 300 * SECOND) == LinkHealth().observe(shuffled, 300 * SECOND)


def verdict(component: str, **fields: Any) -> Verdict:
    usual = {"confidence": 0.9, "grade": "alert", "reason": "r", "since_ns": 0, "last_seen_ns": 5}
    return build.verdict(component=component, **(usual | fields))


def judged(component: str, **fields: Any) -> dict[str, float]:
    return {each.link: each.weight for each in judge_verdict(verdict(component, **fields), PARTS)}


MATRIX = {"kind": "delay_matrix", "slow_pairs": [{"ratio": 4.0}, {"ratio": 4.0}, {"ratio": 5.0}]}


@pytest.mark.parametrize(
    ("component", "fields", "expected"),
    [
        (f"link:{LINK}", {"evidence": (MATRIX,)}, {LINK: 0.25}),  # the share that its wire times tell
        (f"link:{LINK}", {"evidence": ({"kind": "probes", "share": 1 / 128},)}, {LINK: 0.5}),  # that resending leaves
        (f"link:{LINK}", {}, {LINK: 0.5}),  # at most what the step time tells
        (f"link:{LINK}", {"impact": Impact(ranks_waiting=0)}, {LINK: 0.5}),
        ("nic:h0/eth0", {"fault_class": "comm_hang"}, {"h0/eth0--leaf0": 0.0}),
        ("switch:spine1", {"fault_class": "crash"}, {"leaf0--spine1": 0.0, "leaf1--spine1": 0.0}),
        *((name, {}, {}) for name in ("gpu:h0/0", "host:h0", "job:j", "link:h0/eth0--h1/eth0")),
        (f"link:{LINK}", {"confidence": 0.4}, {}),
        (f"link:{LINK}", {"fault_class": "software"}, {}),
    ],
)
def test_a_verdict_says_what_share_of_links_is_left(
    component: str, fields: dict[str, Any], expected: dict[str, float]
) -> None:
    assert judged(component, **fields) == expected


def test_a_verdict_that_is_over_heals_what_it_made_ill() -> None:
    ill, well = verdict("switch:spine1"), judge_verdict(verdict("switch:spine1"), PARTS, healed_ns=9 * SECOND)
    health, _ = LinkHealth().observe(judge_verdict(ill, PARTS), 5)
    assert set(health.weights) == {"leaf0--spine1", "leaf1--spine1"}
    rates = with_rates(build_network(FABRIC), health.weights).gbps
    assert sorted(rates.tolist()) == [200.0] * 4 + [400.0] * 12, "that is what the network takes"
    health, changes = health.observe(well, 19 * SECOND)
    assert health.weights == {}
    assert {change.ts_ns for change in changes} == {19 * SECOND}


def test_parts_that_cannot_be_told_from_the_ill_one_lose_half_as_much() -> None:
    rivals = ("link:leaf0--spine1", "nic:h0/eth0", "host:h0")
    assert judged("link:leaf0--spine0", fault_class="comm_hang", ambiguous_with=rivals) == {
        LINK: 0.0,
        "leaf0--spine1": 0.5,
        "h0/eth0--leaf0": 0.5,
    }
    (_, rival) = judge_verdict(verdict("link:leaf0--spine0", ambiguous_with=("link:leaf0--spine1",)), PARTS)
    assert (rival.weight, rival.reason) == (0.75, "link:leaf0--spine1 cannot be told apart from it: r")
    healed = judge_verdict(verdict("link:leaf0--spine0", ambiguous_with=rivals), PARTS, healed_ns=9)
    assert {each.weight for each in healed} == {1.0}


def test_a_published_topology_says_which_links_are_down_and_which_are_up_again() -> None:
    down = FABRIC.links[-1].model_copy(update={"up": False})
    poorer = FABRIC.model_copy(update={"links": (*FABRIC.links[:-1], down)})
    assert judge_topology(FABRIC, FABRIC, 0) == []
    (ill,), (well,) = judge_topology(poorer, FABRIC, 5), judge_topology(FABRIC, poorer, 7)
    assert (ill.link, ill.weight, ill.reason) == (down.id, 0.0, "the topology has it down")
    assert (well.link, well.weight, well.reason) == (down.id, 1.0, "the topology has it up")
