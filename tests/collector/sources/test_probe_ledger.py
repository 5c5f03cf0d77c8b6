"""Loss is written only about those who are known to answer, and a lost packet keeps the way that is remembered."""

from collector.probes.packets import Flow
from collector.probes.paths import AddressBook, Atlas, PathCatalogue, PathFinder
from collector.probes.schedule import Outcome, Round
from collector.sources.probes import Entry, ProbeLedger
from lockstep.fabrics import leaf_spine
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


def test_traced_flow_gives_a_probe_with_its_hops_and_a_path_with_its_links() -> None:
    entry = Ledger().look(SPINE1)
    assert entry.probe is not None
    assert entry.path is not None
    assert (entry.probe.rtt_ns, entry.probe.hops) == (5, ["leaf0", "spine1", "leaf1"])
    assert entry.path.links == ["h0/eth0--leaf0", "leaf0--spine1", "leaf1--spine1", "h2/eth0--leaf1"]
    assert (entry.path.dst, entry.path.seen_ns) == ("h2", T0 + SECOND)


def test_flow_whose_path_is_fresh_keeps_its_hops_and_repeats_no_path() -> None:
    ledger = Ledger()
    ledger.look(SPINE1)
    entry = ledger.look()
    assert entry.probe is not None
    assert (entry.probe.hops, entry.path) == (["leaf0", "spine1", "leaf1"], None)


def test_lost_packet_of_a_known_flow_is_a_loss_on_its_path_and_has_it_traced_again() -> None:
    ledger = Ledger()
    ledger.look(SPINE1)
    lost = ledger.look(rtt_ns=None)
    assert lost.probe is not None
    assert (lost.probe.rtt_ns, lost.probe.hops) == (None, ["leaf0", "spine1", "leaf1"])
    again = ledger.look(SPINE1, rtt_ns=None)
    assert again.path is not None  # the spine still answers, which confirms the way on which packets are lost


def test_flow_that_moved_has_the_hops_seen_now_and_not_those_remembered() -> None:
    ledger = Ledger()
    ledger.look(SPINE1)
    ledger.look(rtt_ns=None)
    moved = ledger.look(SPINE0)
    assert moved.probe is not None
    assert moved.path is not None
    assert moved.probe.hops == ["leaf0", "spine0", "leaf1"]
    assert moved.path.links[1] == "leaf0--spine0"


def test_silence_of_a_host_that_never_answered_is_reported_once_and_is_no_loss() -> None:
    ledger = Ledger()
    entries = [ledger.look(SPINE1, rtt_ns=None) for _ in range(6)]
    assert [entry.probe for entry in entries] == [None] * 6
    assert [entry.silence for entry in entries if entry.silence] == [
        "h2/eth0 has never answered a tcp probe; its silence is not counted as loss"
    ]
    assert entries[0].path is not None  # the way is known all the same


def test_silence_of_one_protocol_says_nothing_about_another() -> None:
    ledger = Ledger()
    ledger.look(SPINE1)
    assert ledger.look(rtt_ns=None, proto="roce").probe is None
    assert ledger.look(rtt_ns=None).probe is not None


def test_black_hole_from_the_first_packet_on_is_a_loss_where_other_ports_get_through() -> None:
    ledger = Ledger()
    ledger.look(SPINE1, sport=1)
    lost = ledger.look(SPINE0, rtt_ns=None, sport=2)
    assert lost.probe is not None
    assert (lost.probe.rtt_ns, lost.probe.hops) == (None, ["leaf0", "spine0", "leaf1"])


def test_spine_that_does_not_answer_leaves_its_place_open() -> None:
    ledger = Ledger()
    entry = ledger.look()
    assert entry.probe is not None
    assert (entry.probe.hops, entry.path) == (["leaf0", "*", "leaf1"], None)


def test_address_that_nobody_named_is_noted_and_settles_nothing() -> None:
    ledger = Ledger()
    entry = ledger.look(STRANGER)
    assert entry.probe is not None
    assert (entry.probe.hops, entry.path) == (["leaf0", "*", "leaf1"], None)
    assert ledger.ledger.strangers == {STRANGER}


def test_answers_that_contradict_the_topology_are_written_as_they_came_without_a_path() -> None:
    entry = Ledger().look(SPINE0, SPINE1)
    assert entry.probe is not None
    assert (entry.probe.hops, entry.path) == (["spine0", "spine1"], None)
