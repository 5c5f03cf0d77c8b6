"""Every line of a timeline says one thing, nonsense is refused, and what is there at a time can be asked."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadScenario
from simulator.faults import Effect, Fault, active_faults, parse_fault

NIC, LINK, GPU = "nic:h3/eth1", "link:leaf0--spine1", "gpu:h1/0"


def fault(effect: Effect, part: str | None = None, **fields: Any) -> Fault:
    return Fault(at_s=20, effect=effect, part=part, **fields)


FORMS = {
    "fail nic:h3/eth1 tx to 50 %": fault("rate", NIC, side="tx", amount=0.5),
    "fail nic:h3/eth1 rx to 12.5 %": fault("rate", NIC, side="rx", amount=0.125),
    "fail link:leaf0--spine1 to 25 %": fault("rate", LINK, amount=0.25),
    "fail switch:spine1 to 25 %": fault("rate", "switch:spine1", amount=0.25),
    "fail gpu:h1/0 to 50 %": fault("rate", GPU, amount=0.5),
    "fail pcie:h1/0 to 50 %": fault("rate", "pcie:h1/0", amount=0.5),
    "fail nvlink:h1/0 to 50 %": fault("rate", "nvlink:h1/0", amount=0.5),
    "fail fabric to 75 %": fault("rate", "fabric", amount=0.75),
    "fail nic:h3/eth1 over to eth2 after 4 s": fault("over", NIC, spare="eth2", stall_s=4.0),
    "fail link:leaf0--spine1 losing 5 %": fault("losing", LINK, amount=0.05),
    "fail nic:h3/eth1 tx losing 0.5 %": fault("losing", NIC, side="tx", amount=0.005),
    "fail link:leaf0--spine1 delayed 2 ms": fault("delayed", LINK, amount=0.002),
    "fail switch:spine1 down": fault("down", "switch:spine1"),
    "fail link:leaf0--spine1 to 25 % above 1 MB": fault("rate", LINK, amount=0.25, above_bytes=1_000_000),
    "fail nic:h3/eth1 down for 2 s every 60 s": fault("down", NIC, lasting_s=2, every_s=60),
    "fail nic:h3/eth1 down for 2 s": fault("down", NIC, lasting_s=2),
    "fail gpu:h1/0 to 50 % over 30 s": fault("rate", GPU, amount=0.5, over_s=30),
    "fail gpu:h1/0 to 50 % in 25 % of steps": fault("rate", GPU, amount=0.5, share=0.25),
    "fail gpu:h1/0 to 50 % over 10 s for 20 s every 30 s": fault(
        "rate", GPU, amount=0.5, over_s=10, lasting_s=20, every_s=30
    ),
    "fail gpu:h1/0 stuck": fault("stuck", GPU),
    "fail host:h2 starved to 25 %": fault("starved", "host:h2", amount=0.25),
    "fail host:h2 late 250 ms": fault("late", "host:h2", amount=0.25),
    "fail host:h2 gone": fault("gone", "host:h2"),
    "fail host:h2 silent": fault("silent", "host:h2"),
    "fail rank:5 stopped": fault("stopped", "rank:5"),
    "fail rank:5 killed": fault("killed", "rank:5"),
    "fail rank:5 absent": fault("absent", "rank:5"),
    "fail rank:5 mismatched": fault("mismatched", "rank:5"),
    "fail rank:5 deadlocked": fault("deadlocked", "rank:5"),
    "heal": fault("heal"),
    "heal nic:h3/eth1": fault("heal", NIC),
    "pause 12 s": fault("pause", lasting_s=12),
    "pause rank:3 0.5 s": fault("pause", "rank:3", lasting_s=0.5),
    "restart after 5 s": fault("restart", lasting_s=5),
    "restart without h3 after 5 s": fault("restart", "host:h3", lasting_s=5),
    "restart with h8 for h3 after 5 s": fault("restart", "host:h3", spare="h8", lasting_s=5),
    "second mix": fault("second mix"),
}


@pytest.mark.parametrize(("what", "expected"), FORMS.items(), ids=FORMS)
def test_line_says(what: str, expected: Fault) -> None:
    assert parse_fault(f"at 20 s {what}") == parse_fault(f"  at 20  s\t{what.replace(' ', '  ')} ") == expected
    assert {form.effect for form in FORMS.values()} == set(get_args(Effect))


@pytest.mark.parametrize(
    "line", ["", f"fail {NIC} down", f"at noon fail {NIC} down", "at -1 s heal", "at 20 heal", "at 20 s", "20 s heal"]
)
def test_line_without_a_moment_is_refused_with_an_example(line: str) -> None:
    with pytest.raises(BadScenario, match=r"^.* does not begin with a moment, such as: at 20 s fail"):
        parse_fault(line)


NONSENSE = (
    "fail nic:h3/eth1 | fail fan:h3/0 down | fail nic: down | fail nic:h3/eth1 both to 50 % | "
    "fail nic:h3/eth1 to 50 | fail nic:h3/eth1 to -50 % | fail nic:h3/eth1 to half | "
    "fail nic:h3/eth1 losing packets | fail nic:h3/eth1 delayed 2 s | fail nic:h3/eth1 down every 60 s | "
    "fail nic:h3/eth1 to 50 % for 2 s over 3 s | fail gpu:h1/0 stucks | fail host:h2 starved | "
    "fail fabric:all to 50 % | heal everything | pause | pause 12 ms | restart | restart with h8 after 5 s | "
    "restart without host:h3 after 5 s | third mix | fail rank:5 stopped; heal"
)


@pytest.mark.parametrize("what", NONSENSE.split(" | "))
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
def test_what_makes_no_sense_is_refused_with_the_reason(what: str, complaint: str) -> None:
    with pytest.raises(BadScenario) as refusal:
        parse_fault(f"at 20 s {what}")
    assert str(refusal.value) == f"'at 20 s {what}': {complaint}"


# How much of it is there. Whole seconds, so that moments can be compared exactly.

SECONDS = st.integers(0, 200)
LINES = st.sampled_from(
    [f"fail {NIC} {what}" for what in ("tx to 50 %", "tx to 25 %", "rx to 50 %", "down for 20 s")]
    + [f"fail {NIC} down for 5 s every 30 s", f"fail {GPU} to 60 % over 30 s"]
    + [f"fail {GPU} to 60 % over 10 s for 20 s every 40 s", "fail rank:5 stopped", "heal", f"heal {NIC}"]
    + ["pause 3 s", "restart after 5 s", "second mix"]
)
TURNS = st.builds(lambda at, what: parse_fault(f"at {at} s {what}"), SECONDS, LINES)


@given(TURNS, SECONDS)
def test_level_is_a_share_nothing_before_its_moment_and_the_same_when_it_comes_again(fault: Fault, now: int) -> None:
    level = fault.level(now)
    assert 0 <= level <= 1
    assert level == 0 or now >= fault.at_s
    assert not fault.every_s or fault.level(fault.at_s + now) == fault.level(fault.at_s + now + fault.every_s)


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
