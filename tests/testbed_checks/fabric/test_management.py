"""Each fabric has a subnet of its own for management."""

from ipaddress import IPv4Address

import pytest

from lockstep.errors import LockstepError
from tests.testbed.fabric.management import Management, choose_subnet


def test_the_first_subnet_in_which_nobody_is_is_taken() -> None:
    taken = [IPv4Address(text) for text in ("10.0.0.1", "198.18.0.1", "198.18.2.77")]
    assert choose_subnet(taken) == "198.18.1.0/24"


def test_without_a_free_subnet_it_says_so() -> None:
    everyone = [IPv4Address("198.18.0.0") + 256 * number for number in range(512)]
    with pytest.raises(LockstepError, match=r"no subnet of 198\.18\.0\.0/15 is free"):
        choose_subnet(everyone)


def test_hosts_and_this_machine_have_different_addresses_and_short_names() -> None:
    hosts = tuple(f"h{number}" for number in range(250))
    management = Management("lk4194304-9", "198.18.1.0/24", hosts)
    addresses = {management.head, *(management.address_of(host) for host in hosts)}
    assert len(addresses) == 251
    assert "198.18.1.255" not in addresses
    assert max(len(name) for name in (management.bridge, management.port_of("h249"))) <= 15
