"""Loss is written only about those who are known to answer, and a lost packet keeps the way that is remembered."""

from typing import Any

import pytest

from collector.probes.packets import Flow
from collector.probes.paths import AddressBook, Atlas, PathCatalogue, PathFinder
from collector.probes.schedule import Outcome, Round
from collector.sources.probes import Entry, ProbeLedger
from lockstep.fabrics import leaf_spine
from lockstep.records import Path, Probe
from tests.builders import SECOND, T0

FABRIC = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)
SPINE0, SPINE1, LEAF1, STRANGER = "10.7.0.1", "10.7.1.1", "10.8.1.1", "10.99.0.1"
ADDRESSES = {"spine0": SPINE0, "spine1": SPINE1, "leaf1": LEAF1}


class Ledger:
    """A ledger of h0, told of one look after the other."""

    def __init__(self) -> None:
        self.catalogue = PathCatalogue(fresh_s=600)
        book = AddressBook(FABRIC, ADDRESSES)
        self.ledger = ProbeLedger(Atlas("h0", PathFinder(FABRIC, "h0"), book, self.catalogue))
        self.now_ns = T0

    def look(
        self, *responders: str, rtt_ns: int | None = 5, sport: int = 1, proto: str = "tcp", dst: str = "h2"
    ) -> Entry:
        self.now_ns += SECOND
        flow = Flow("eth0", dst, "eth0", proto, sport, 9)
        is_traced = not self.catalogue.is_fresh(flow, self.now_ns)
        each = Round(flow, "10.0.0.1", "10.0.0.3", 64 if proto == "tcp" else 3, is_traced, (2,) if is_traced else ())
        return self.ledger.write(each, Outcome(self.now_ns, rtt_ns, responders), self.now_ns)

    def written(self, *responders: str, **about: Any) -> tuple[Probe, Path | None]:
        entry = self.look(*responders, **about)
        assert entry.probe is not None
        return entry.probe, entry.path


def test_traced_flow_keeps_its_hops_when_a_packet_is_lost_until_it_is_seen_elsewhere() -> None:
    ledger = Ledger()
    probe, path = ledger.written(SPINE1)
    assert (probe.rtt_ns, probe.hops, probe.dst) == (5, ["leaf0", "spine1", "leaf1"], "h2")
    assert path is not None
    assert path.links == ["h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h2/eth0--leaf1"]
    assert (path.dst, path.seen_ns) == ("h2", T0 + SECOND)
    fresh, no_path = ledger.written()
    assert (fresh.hops, no_path) == (probe.hops, None)
    lost, _ = ledger.written(rtt_ns=None)
    assert (lost.rtt_ns, lost.hops) == (None, probe.hops)
    assert ledger.look(SPINE1, rtt_ns=None).path is not None, "the spine still answers, which confirms the path"
    ledger.look(rtt_ns=None)
    moved, path = ledger.written(SPINE0)
    assert path is not None
    assert (moved.hops, path.links[1]) == (["leaf0", "spine0", "leaf1"], "leaf0--spine0")


def test_silence_of_a_host_that_never_answered_is_reported_once_and_is_no_loss() -> None:
    ledger = Ledger()
    entries = [ledger.look(SPINE1, rtt_ns=None) for _ in range(6)]
    assert [entry.probe for entry in entries] == [None] * 6
    assert [entry.silence for entry in entries if entry.silence] == [
        "h2/eth0 has never answered a tcp probe; its silence is not counted as loss"
    ]
    assert entries[0].path is not None  # the way is known all the same


def test_silence_of_one_protocol_says_nothing_about_another_and_other_ports_show_a_black_hole() -> None:
    ledger = Ledger()
    ledger.look(SPINE1, sport=1)
    assert ledger.look(rtt_ns=None, proto="roce").probe is None
    assert ledger.look(rtt_ns=None).probe is not None
    lost, _ = ledger.written(SPINE0, rtt_ns=None, sport=2)
    assert (lost.rtt_ns, lost.hops) == (None, ["leaf0", "spine0", "leaf1"])


@pytest.mark.parametrize(
    ("responders", "hops", "strangers"),
    [
        ((), ["leaf0", "*", "leaf1"], set()),
        ((STRANGER,), ["leaf0", "*", "leaf1"], {STRANGER}),
        ((SPINE0, SPINE1), ["spine0", "spine1"], set()),
    ],
    ids=["a spine that does not answer", "an address that nobody named", "against the topology"],
)
def test_answers_that_settle_nothing_are_written_as_they_came_without_a_path(
    responders: tuple[str, ...], hops: list[str], strangers: set[str]
) -> None:
    ledger = Ledger()
    probe, path = ledger.written(*responders)
    assert (probe.hops, path, ledger.ledger.strangers) == (hops, None, strangers)
