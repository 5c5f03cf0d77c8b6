"""What a fabric needs and does not get is said in a sentence, and nothing stays half built."""

import pytest

from lockstep.errors import BadInput, NotPresent
from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.fabric import building, ownership
from tests.testbed.fabric.building import build_fabric, open_fabric
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed_checks.fabric.remains import find_remains

TOPOLOGY = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1, options=FabricOptions(gbps=100))


def test_without_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotPresent, match="the testbed needs root"):
        build_fabric(TOPOLOGY)


@pytest.mark.needs_root
def test_root_without_the_right_to_make_namespaces_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(what: int) -> None:
        raise PermissionError(1, "no namespace of our own: Operation not permitted")

    monkeypatch.setattr("tests.testbed.fabric.kernel.unshare", refuse)
    with pytest.raises(NotPresent, match=r"the right to make network namespaces: .*Operation not permitted"):
        build_fabric(TOPOLOGY)
    assert find_remains(ownership.choose_prefix()) == []


@pytest.mark.needs_root
def test_a_build_that_fails_halfway_takes_down_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no memory for another route")

    monkeypatch.setattr(building, "lay_route", fail)
    prefix = ownership.choose_prefix()
    with pytest.raises(OSError, match="no memory for another route"):
        build_fabric(TOPOLOGY)
    assert find_remains(prefix) == []


@pytest.mark.needs_root
def test_too_much_for_this_machine_is_refused_before_anything_is_built() -> None:
    prefix = ownership.choose_prefix()
    with pytest.raises(BadInput, match="but this testbed carries 1500"):
        build_fabric(TOPOLOGY, ShapeOptions(mbps_per_gbps=100))
    assert find_remains(prefix) == []


@pytest.mark.needs_root
def test_a_fabric_that_is_not_there_cannot_be_opened() -> None:
    with pytest.raises(NotPresent, match="there is no fabric lk1-7 here"):
        open_fabric("lk1-7")
