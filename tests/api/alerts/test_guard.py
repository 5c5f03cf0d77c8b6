"""Nothing is sent to addresses inside the site unless the settings allow it, however the address is spelled."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.alerts.guard import find_address, is_allowed, look_up
from lockstep.errors import BadInput, ReceiverAway

INSIDE = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "239.1.1.1",
    "255.255.255.255",
    "240.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
]


@pytest.mark.parametrize("address", INSIDE)
def test_address_inside_is_denied(address: str) -> None:
    assert not is_allowed("receiver.example", address, ())


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_address_in_the_world_is_allowed(address: str) -> None:
    assert is_allowed("receiver.example", address, ())


@pytest.mark.parametrize(
    ("host", "address", "rule"),
    [
        ("am", "127.0.0.1", "127.0.0.1"),
        ("am", "127.0.0.1", "127.0.0.0/8"),
        ("am", "10.2.3.4", "10.0.0.0/8"),
        ("am", "fd00::7", "fd00::/8"),
        ("Alerts.Site.", "10.2.3.4", "alerts.site"),
        ("alerts.site", "10.2.3.4", "*.site"),
    ],
)
def test_settings_allow_networks_and_names(host: str, address: str, rule: str) -> None:
    assert is_allowed(host, address, (rule,))
    assert not is_allowed("elsewhere", "192.168.0.9", (rule,))


def test_sentence_says_how_to_allow_it() -> None:
    with pytest.raises(BadInput, match=r"""am is 127\.0\.0\.1.*LOCKSTEP_ALERTS_ALLOW='\["127\.0\.0\.1"\]'"""):
        find_address("am", 9093, (), lambda host, port: ["127.0.0.1"])


def test_first_address_that_is_allowed_is_taken() -> None:
    found = find_address("both", 443, (), lambda host, port: ["10.0.0.1", "1.1.1.1"])
    assert found == "1.1.1.1"


def test_name_is_looked_up_once_and_the_checked_address_is_returned() -> None:
    answers = iter([["1.1.1.1"], ["127.0.0.1"]])
    assert find_address("rebinds", 443, (), lambda host, port: next(answers)) == "1.1.1.1"


def test_name_that_nobody_knows_is_a_receiver_that_is_away() -> None:
    with pytest.raises(ReceiverAway, match="cannot be looked up"):
        look_up("no-such-host.invalid", 443)


def test_numbers_are_not_a_way_around() -> None:
    assert look_up("2130706433", 80) == ["127.0.0.1"], "the system reads it as an address, and so do we"


@given(st.ip_addresses(v=4))
def test_address_wrapped_into_ipv6_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    plain = is_allowed("x", str(address), ())
    assert is_allowed("x", f"::ffff:{address}", ()) == plain
    if not plain:
        assert not is_allowed("x", str(ipaddress.IPv6Address((0x64FF9B << 96) | int(address))), ())
