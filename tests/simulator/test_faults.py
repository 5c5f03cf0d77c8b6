"""Every line of a timeline says one thing, nonsense is refused, and what is there at a moment can be asked."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadScenario
from simulator.faults import Effect, Fault, active_faults, parse_fault

NIC, LINK, GPU = "nic:h3/eth1", "link:leaf0--spine1", "gpu:h1/0"

FORMS = {
    "fail nic:h3/eth1 tx to 50 %": Fault(at_s=20, effect="rate", part=NIC, side="tx", amount=0.5),
    "fail nic:h3/eth1 rx to 12.5 %": Fault(at_s=20, effect="rate", part=NIC, side="rx", amount=0.125),
    "fail nic:h3/eth1 to 50 %": Fault(at_s=20, effect="rate", part=NIC, amount=0.5),
    "fail link:leaf0--spine1 to 25 %": Fault(at_s=20, effect="rate", part=LINK, amount=0.25),
    "fail link:leaf0--spine1 tx to 25 %": Fault(at_s=20, effect="rate", part=LINK, side="tx", amount=0.25),
    "fail switch:spine1 to 25 %": Fault(at_s=20, effect="rate", part="switch:spine1", amount=0.25),
    "fail gpu:h1/0 to 50 %": Fault(at_s=20, effect="rate", part=GPU, amount=0.5),
    "fail pcie:h1/0 to 50 %": Fault(at_s=20, effect="rate", part="pcie:h1/0", amount=0.5),
    "fail nvlink:h1/0 to 50 %": Fault(at_s=20, effect="rate", part="nvlink:h1/0", amount=0.5),
    "fail fabric to 75 %": Fault(at_s=20, effect="rate", part="fabric", amount=0.75),
    "fail nic:h3/eth1 over to eth2 after 4 s": Fault(at_s=20, effect="over", part=NIC, spare="eth2", stall_s=4.0),
    "fail link:leaf0--spine1 losing 5 %": Fault(at_s=20, effect="losing", part=LINK, amount=0.05),
    "fail nic:h3/eth1 tx losing 0.5 %": Fault(at_s=20, effect="losing", part=NIC, side="tx", amount=0.005),
    "fail link:leaf0--spine1 delayed 2 ms": Fault(at_s=20, effect="delayed", part=LINK, amount=0.002),
    "fail link:leaf0--spine1 down": Fault(at_s=20, effect="down", part=LINK),
    "fail switch:spine1 down": Fault(at_s=20, effect="down", part="switch:spine1"),
    "fail link:leaf0--spine1 to 25 % above 1 MB": Fault(
        at_s=20, effect="rate", part=LINK, amount=0.25, above_bytes=1_000_000
    ),
    "fail nic:h3/eth1 down for 2 s every 60 s": Fault(at_s=20, effect="down", part=NIC, lasting_s=2, every_s=60),
    "fail nic:h3/eth1 down for 2 s": Fault(at_s=20, effect="down", part=NIC, lasting_s=2),
    "fail gpu:h1/0 to 50 % over 30 s": Fault(at_s=20, effect="rate", part=GPU, amount=0.5, over_s=30),
    "fail gpu:h1/0 to 50 % in 25 % of steps": Fault(at_s=20, effect="rate", part=GPU, amount=0.5, share=0.25),
    "fail gpu:h1/0 to 50 % over 10 s for 20 s every 30 s": Fault(
        at_s=20, effect="rate", part=GPU, amount=0.5, over_s=10, lasting_s=20, every_s=30
    ),
    "fail gpu:h1/0 stuck": Fault(at_s=20, effect="stuck", part=GPU),
    "fail host:h2 starved to 25 %": Fault(at_s=20, effect="starved", part="host:h2", amount=0.25),
    "fail host:h2 late 250 ms": Fault(at_s=20, effect="late", part="host:h2", amount=0.25),
    "fail host:h2 gone": Fault(at_s=20, effect="gone", part="host:h2"),
    "fail host:h2 silent": Fault(at_s=20, effect="silent", part="host:h2"),
    "fail rank:5 late 250 ms": Fault(at_s=20, effect="late", part="rank:5", amount=0.25),
    "fail rank:5 stopped": Fault(at_s=20, effect="stopped", part="rank:5"),
    "fail rank:5 killed": Fault(at_s=20, effect="killed", part="rank:5"),
    "fail rank:5 absent": Fault(at_s=20, effect="absent", part="rank:5"),
    "fail rank:5 mismatched": Fault(at_s=20, effect="mismatched", part="rank:5"),
    "fail rank:5 deadlocked": Fault(at_s=20, effect="deadlocked", part="rank:5"),
    "heal": Fault(at_s=20, effect="heal"),
    "heal nic:h3/eth1": Fault(at_s=20, effect="heal", part=NIC),
    "pause 12 s": Fault(at_s=20, effect="pause", lasting_s=12),
    "pause rank:3 0.5 s": Fault(at_s=20, effect="pause", part="rank:3", lasting_s=0.5),
    "restart after 5 s": Fault(at_s=20, effect="restart", lasting_s=5),
    "restart without h3 after 5 s": Fault(at_s=20, effect="restart", part="host:h3", lasting_s=5),
    "restart with h8 for h3 after 5 s": Fault(at_s=20, effect="restart", part="host:h3", spare="h8", lasting_s=5),
    "second mix": Fault(at_s=20, effect="second mix"),
}


@pytest.mark.parametrize(("what", "fault"), FORMS.items(), ids=FORMS)
def test_line_says(what: str, fault: Fault) -> None:
    assert parse_fault(f"at 20 s {what}") == fault


def test_every_effect_has_a_line_here() -> None:
    assert {fault.effect for fault in FORMS.values()} == set(get_args(Effect))


def test_spaces_do_not_matter() -> None:
    assert parse_fault("  at 20  s\tfail rank:5   stopped ") == parse_fault("at 20 s fail rank:5 stopped")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "fail nic:h3/eth1 down",
        "at noon fail nic:h3/eth1 down",
        "at -1 s heal",
        "at 20 heal",
        "at 20 s",
        "20 s heal",
    ],
)
def test_line_without_a_moment_is_refused_with_an_example(line: str) -> None:
    with pytest.raises(BadScenario, match=r"^.* does not begin with a moment, such as: at 20 s fail"):
        parse_fault(line)


@pytest.mark.parametrize(
    "what",
    [
        "fail nic:h3/eth1",
        "fail fan:h3/0 down",
        "fail nic: down",
        "fail nic:h3/eth1 both to 50 %",
        "fail nic:h3/eth1 to 50",
        "fail nic:h3/eth1 to -50 %",
        "fail nic:h3/eth1 to half",
        "fail nic:h3/eth1 losing packets",
        "fail nic:h3/eth1 delayed 2 s",
        "fail nic:h3/eth1 down every 60 s",
        "fail nic:h3/eth1 to 50 % for 2 s over 3 s",
        "fail gpu:h1/0 stucks",
        "fail host:h2 starved",
        "fail fabric:all to 50 %",
        "heal everything",
        "pause",
        "pause 12 ms",
        "restart",
        "restart with h8 after 5 s",
        "restart without host:h3 after 5 s",
        "third mix",
        "fail rank:5 stopped; heal",
    ],
)
def test_what_is_not_in_the_language_is_refused_with_the_line(what: str) -> None:
    with pytest.raises(BadScenario) as refusal:
        parse_fault(f"at 20 s {what}")
    assert str(refusal.value).startswith(f"'at 20 s {what}' is not understood; ")


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("fail nic:h3/eth1 to 0 %", "what is left is more than nothing and not all"),
        ("fail nic:h3/eth1 to 100 %", "what is left is more than nothing and not all"),
        ("fail host:h2 starved to 0 %", "what is left is more than nothing and not all"),
        ("fail nic:h3/eth1 losing 101 %", "a loss is a share of 100 %"),
        ("fail nic:h3/eth1 losing 0 %", "a loss is a share of 100 %"),
        ("fail gpu:h1/0 to 60 % in 300 % of steps", "so many steps there are not"),
        ("fail nic:h3/eth1 down for 60 s every 60 s", "it never ends"),
        ("fail rank:5 stopped above 1 MB", "only what slows a wire can depend on the size of an operation"),
        ("pause nic:h3/eth1 2 s", "only a rank, a host or the whole job pauses"),
    ],
)
def test_amount_that_makes_no_sense_is_refused_with_the_reason(what: str, complaint: str) -> None:
    with pytest.raises(BadScenario) as refusal:
        parse_fault(f"at 20 s {what}")
    assert str(refusal.value) == f"'at 20 s {what}': {complaint}"


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("fail host:h2 to 50 %", "only these can be rate: nic, link, switch, gpu, pcie, nvlink, fabric"),
        ("fail link:leaf0--spine1 over to eth2 after 4 s", "only these can be over: nic"),
        ("fail gpu:h1/0 losing 5 %", "only these can be losing: nic, link, switch"),
        ("fail rank:5 delayed 2 ms", "only these can be delayed: nic, link, switch"),
        ("fail gpu:h1/0 down", "only these can be down: nic, link, switch"),
        ("fail fabric down", "only these can be down: nic, link, switch"),
        ("fail host:h2 stuck", "only these can be stuck: gpu"),
        ("fail gpu:h1/0 starved to 50 %", "only these can be starved: host"),
        ("fail nic:h3/eth1 late 300 ms", "only these can be late: host, rank"),
        ("fail rank:5 gone", "only these can be gone: host"),
        ("fail rank:5 silent", "only these can be silent: host"),
        ("fail host:h2 stopped", "only these can be stopped: rank"),
        ("fail host:h2 absent", "only these can be absent: rank"),
        ("fail gpu:h1/0 tx to 50 %", "only a NIC or a link has a side"),
        ("fail switch:spine1 rx to 50 %", "only a NIC or a link has a side"),
    ],
)
def test_part_that_cannot_break_like_that_is_refused(what: str, complaint: str) -> None:
    with pytest.raises(BadScenario) as refusal:
        parse_fault(f"at 20 s {what}")
    assert str(refusal.value) == f"'at 20 s {what}': {complaint}"


@pytest.mark.parametrize(
    ("part", "kind", "name"),
    [(NIC, "nic", "h3/eth1"), (LINK, "link", "leaf0--spine1"), ("rank:5", "rank", "5"), ("fabric", "fabric", "")],
)
def test_part_has_a_kind_and_a_name(part: str, kind: str, name: str) -> None:
    fault = Fault(at_s=0, effect="rate", part=part, amount=0.5)
    assert (fault.kind, fault.name) == (kind, name)


# How much of it is there. Whole seconds, so that moments can be compared exactly.

SECONDS = st.integers(0, 200)
LINES = st.sampled_from(
    [
        "fail nic:h3/eth1 tx to 50 %",
        "fail nic:h3/eth1 tx to 25 %",
        "fail nic:h3/eth1 rx to 50 %",
        "fail nic:h3/eth1 down for 20 s",
        "fail nic:h3/eth1 down for 5 s every 30 s",
        "fail gpu:h1/0 to 60 % over 30 s",
        "fail gpu:h1/0 to 60 % over 10 s for 20 s every 40 s",
        "fail rank:5 stopped",
        "heal",
        "heal nic:h3/eth1",
        "pause 3 s",
        "restart after 5 s",
        "second mix",
    ]
)
TURNS = st.builds(lambda at, what: parse_fault(f"at {at} s {what}"), SECONDS, LINES)


@given(TURNS, SECONDS)
def test_level_is_a_share_and_nothing_before_its_moment(fault: Fault, now: int) -> None:
    level = fault.level(now)
    assert 0 <= level <= 1
    if now < fault.at_s:
        assert level == 0


@given(TURNS, SECONDS)
def test_what_comes_again_comes_the_same_each_time(fault: Fault, since: int) -> None:
    if fault.every_s:
        assert fault.level(fault.at_s + since) == fault.level(fault.at_s + since + fault.every_s)


@given(st.integers(1, 60), st.integers(0, 100))
def test_ramp_rises_evenly_and_stays(over: int, since: int) -> None:
    ramp = parse_fault(f"at 20 s fail gpu:h1/0 to 60 % over {over} s")
    assert ramp.level(20 + since) == (1.0 if since >= over else since / over)


@given(st.lists(TURNS, max_size=6), SECONDS)
def test_what_is_there_is_what_has_begun_and_was_neither_replaced_nor_healed(faults: list[Fault], now: int) -> None:
    begun = [fault for fault in sorted(faults, key=lambda fault: fault.at_s) if fault.at_s <= now]

    def is_there(number: int) -> bool:
        fault, later = begun[number], begun[number + 1 :]
        replaced = any((o.effect, o.part, o.side) == (fault.effect, fault.part, fault.side) for o in later)
        healed = any(other.effect == "heal" and other.part in (None, fault.part) for other in later)
        is_failure = fault.effect in ("rate", "down", "stopped")
        return is_failure and fault.level(now) > 0 and not replaced and not healed

    expected = [fault for number, fault in enumerate(begun) if is_there(number)]
    there = active_faults(tuple(faults), now)
    assert sorted(there, key=repr) == sorted(expected, key=repr)


def test_healing_a_part_leaves_the_others() -> None:
    lines = ["at 1 s fail nic:h3/eth1 tx to 50 %", "at 1 s fail gpu:h1/0 stuck", "at 9 s heal nic:h3/eth1"]
    timeline = tuple(parse_fault(line) for line in lines)
    assert [fault.part for fault in active_faults(timeline, 8)] == [NIC, GPU]
    assert [fault.part for fault in active_faults(timeline, 9)] == [GPU]
