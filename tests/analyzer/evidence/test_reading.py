"""What counters, health, events and probes say of parts: bounded weights, and facts that need none."""

from dataclasses import replace

import pytest

from analyzer.evidence.observations import MOST, NO_EVIDENCE, Evidence, Observation, gather_evidence
from lockstep.records import HostRecord
from lockstep.store.store import Store
from lockstep.verdict import Side
from tests.analyzer.evidence.build import BEGIN, END, HOSTS, ONSET, event, gpus, look, nics, ports, probe, queues
from tests.builders import SECOND, T0


def weighty(evidence: Evidence) -> set[str]:
    return {name for name in evidence.by_component if evidence.log_odds(name) > 0}


SILENT: dict[str, list[HostRecord]] = {
    "nothing": [],
    "calm": [*nics("h3"), *ports("leaf1", "h3/eth0"), *gpus("h3")],
    "all NICs alike": [row for n in range(HOSTS) for row in nics(f"h{n}", tx_drops=50.0) if row.host == f"h{n}"],
    "an idle GPU": [*gpus("h3", throttle="gpu_idle", sm_mhz=345)],
    "a program's xid": [event("xid", "gpu:h3/0", "warning", detail='{"xid": 31, "blame": "application"}')],
    "queues everywhere": [*queues("h3", elsewhere=0.7)],
    "a queue where others send little": [*queues("h3", elsewhere=0.0, others_send=0.1)],
    "a queue in too few readings": [*queues("h3", elsewhere=0.0, seconds=range(END - 3, END))],
    "long ago": [event("link_down", "nic:h3/eth0", at=END - 90)],
}


@pytest.mark.parametrize("case", SILENT)
def test_what_says_nothing_of_a_part_is_no_sign(store: Store, case: str) -> None:
    assert look(store, *SILENT[case]) == NO_EVIDENCE


@pytest.mark.parametrize("source", ["links", "rdma", "gpu"])
def test_host_is_silent_for_what_a_source_tells_that_has_stalled(embedded_store: Store, source: str) -> None:
    readings = [*nics("h3", tx_errors=100.0), *gpus("h3", throttle="hw_slowdown")]
    said = weighty(look(embedded_store, *readings, stalled=source))
    assert said == ({"nic:h3/eth0", "link:h3/eth0--leaf1"} if source == "gpu" else {"gpu:h3/0"})


@pytest.mark.parametrize("is_stalled", [False, True])
def test_port_of_which_no_readings_come_any_more_says_nothing(embedded_store: Store, is_stalled: bool) -> None:
    down = [replace(row, up=False) for row in ports("", "") if (row.switch, row.port) == ("leaf1", "h3/eth0")]
    told = down[:-3] if is_stalled else down
    assert weighty(look(embedded_store, *told)) == (set() if is_stalled else {"link:h3/eth0--leaf1"})


def test_readings_of_switches_mean_nothing_without_a_topology(embedded_store: Store) -> None:
    assert look(embedded_store, *ports("leaf1", "spine0", errors=100.0), topology=None) == NO_EVIDENCE


def test_events_accuse_their_part(embedded_store: Store) -> None:
    fell_off = event("xid", "gpu:h3/0", "critical", detail='{"xid": 79, "blame": "hardware"}')
    evidence = look(embedded_store, fell_off, event("link_down", "nic:h3/eth0"))
    assert evidence.log_odds("gpu:h3/0") > 0
    assert evidence.log_odds("nic:h3/eth0") == MOST


@pytest.mark.parametrize(
    ("counter", "side", "first"),
    [
        ("tx_errors", "tx", "nic:h3/eth0"),
        ("tx_drops", "tx", "nic:h3/eth0"),
        ("rx_drops", "rx", "nic:h3/eth0"),
        ("rx_errors", "rx", "link:h3/eth0--leaf1"),
    ],
)
def test_counter_speaks_for_the_side_it_counts(embedded_store: Store, counter: str, side: Side, first: str) -> None:
    evidence = look(embedded_store, *nics("h3", ONSET, **{counter: 100.0}))
    assert weighty(evidence) <= {"nic:h3/eth0", "link:h3/eth0--leaf1"}
    assert max(weighty(evidence), key=lambda name: evidence.log_odds(name, side)) == first
    assert evidence.log_odds("nic:h3/eth0", side) >= 1
    assert evidence.log_odds("nic:h3/eth0", "rx" if side == "tx" else "tx") == 0
    assert evidence.describe("nic:h3/eth0", side)[0]["counter"] == counter


@pytest.mark.parametrize(("since", "weight"), [(ONSET, 2.5), (BEGIN, 1.25)])
def test_counter_that_always_ran_speaks_half_as_loud(embedded_store: Store, since: int, weight: float) -> None:
    evidence = look(embedded_store, *nics("h3", since=since, tx_errors=100.0))
    assert evidence.log_odds("nic:h3/eth0", "tx") == weight


def test_counter_that_began_with_the_evaluation_is_new_in_a_capture_hardly_older(embedded_store: Store) -> None:
    told = [row for row in nics("h3", since=ONSET + 14, tx_errors=100.0) if row.ts_ns >= T0 + ONSET * SECOND]
    assert look(embedded_store, *told).log_odds("nic:h3/eth0", "tx") == 2.5


def test_nic_at_half_its_rate_is_suspected_both_ways(embedded_store: Store) -> None:
    evidence = look(embedded_store, *nics("h3", speed_mbps=10_000.0))
    assert evidence.log_odds("nic:h3/eth0", "tx") == evidence.log_odds("nic:h3/eth0", "rx") == MOST
    assert "of 400 Gb/s" in evidence.describe("nic:h3/eth0")[0]["what"]


def test_nic_in_front_of_which_packets_always_wait_sends_slowly(embedded_store: Store) -> None:
    evidence = look(embedded_store, *queues("h3", elsewhere=0.2))
    assert weighty(evidence) == {"nic:h3/eth0", "link:h3/eth0--leaf1"}
    assert (evidence.log_odds("nic:h3/eth0", "tx"), evidence.log_odds("nic:h3/eth0", "rx")) == (2.5, 0)
    what = evidence.describe("nic:h3/eth0")[0]["what"]
    assert what == (
        "packets wait in front of h3/eth0 in 5 of 5 readings, in front of NICs that send as much in 7 of 35"
    )


@pytest.mark.parametrize("counter", ["pause_rx", "pause_tx"])
def test_nic_that_tells_its_switch_to_pause_receives_slowly_and_one_that_is_told_to_does_not_send_slowly(
    embedded_store: Store, counter: str
) -> None:
    evidence = look(embedded_store, *ports("leaf1", "h3/eth0", **{counter: 100.0}))
    tx, rx = evidence.log_odds("nic:h3/eth0", "tx"), evidence.log_odds("nic:h3/eth0", "rx")
    assert (tx == 0 and rx > 1) if counter == "pause_rx" else tx < 0


@pytest.mark.parametrize(("switch", "port", "side"), [("leaf1", "spine0", "rx"), ("spine0", "leaf1", "tx")])
def test_broken_frames_speak_for_a_link_one_way(embedded_store: Store, switch: str, port: str, side: Side) -> None:
    evidence = look(embedded_store, *ports(switch, port, errors=100.0, fec_uncorrected=100.0))
    assert weighty(evidence) == {"link:leaf1--spine0"}
    assert evidence.log_odds("link:leaf1--spine0", side) == MOST
    assert evidence.log_odds("link:leaf1--spine0", "rx" if side == "tx" else "tx") == 0


@pytest.mark.parametrize(
    ("fields", "component"),
    [
        ({"throttle": "hw_thermal_slowdown"}, "gpu:h3/0"),
        ({"sm_mhz": 1200}, "gpu:h3/0"),
        ({"ecc_dbe": 1}, "gpu:h3/0"),
        ({"nvlink_errors": 500}, "nvlink:h3/0"),
        ({"pcie_replays": 500}, "pcie:h3/0"),
    ],
)
def test_gpu_health_speaks_for_its_part(embedded_store: Store, fields: dict[str, int | str], component: str) -> None:
    evidence = look(embedded_store, *gpus("h3", **fields))
    assert weighty(evidence) == {component}
    assert evidence.log_odds(component) >= 2


def test_link_that_delays_probes_is_suspected(embedded_store: Store) -> None:
    ways = [(a, b, spine) for a in range(HOSTS) for b in range(HOSTS) for spine in (0, 1) if a // 2 != b // 2]
    told = [
        probe(
            f"h{a}",
            f"h{b}",
            [f"leaf{a // 2}", f"spine{spine}", f"leaf{b // 2}"],
            END - 10 + n % 9,
            90_000 if (a // 2, spine) == (1, 1) else 10_000 + n,
        )
        for n, (a, b, spine) in enumerate(ways)
    ]
    evidence = look(embedded_store, *told)
    assert weighty(evidence) == {"link:leaf1--spine1"}
    assert evidence.log_odds("link:leaf1--spine1", "tx") == MOST


def test_all_signs_together_are_bounded() -> None:
    evidence = gather_evidence(Observation("nic:h0/eth0", 2.0, {"number": number}) for number in range(5))
    assert evidence.log_odds("nic:h0/eth0") == MOST
    assert len(evidence.describe("nic:h0/eth0")) == 5
    assert evidence.log_odds("nic:h1/eth0") == 0
