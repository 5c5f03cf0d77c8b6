"""A verdict says what the matrix says: the part, how sure, since when, at what cost, and with which figures."""

import numpy as np
import pyarrow as pa
import pytest

from analyzer.delay import DelayOptions, build_matrix
from analyzer.pipeline import CONFIDENCE_CAPS, AnalyzerOptions, judge
from lockstep.clock import rfc3339
from lockstep.verdict import Verdict
from tests.analyzer.build import fabric, facts, measured, mesh, ring, row, table

OPTIONS = AnalyzerOptions()


def verdict_on(pairs: pa.Table, **more: float) -> Verdict:
    found = judge(facts(3, pairs), fabric(), more.get("usual_pace"), OPTIONS)
    assert found is not None
    (verdict,) = found
    return verdict


def slow_nic(transport: str | None = "ib", times: float = 2.0) -> pa.Table:
    return table(row(pair, times if "h3/eth1" in pair else 1.0, transport=transport) for pair in ring())


def test_healthy_window_gets_no_verdict() -> None:
    assert judge(facts(0, measured(ring())), fabric(), None, OPTIONS) == []


def test_window_without_enough_pairs_cannot_be_judged() -> None:
    assert judge(facts(0, table([])), fabric(), None, OPTIONS) is None
    assert judge(facts(0, measured(ring()[:7])), fabric(), None, OPTIONS) is None


def test_verdict_names_job_part_and_time() -> None:
    verdict = verdict_on(slow_nic())
    window = facts(3).window
    assert (verdict.job, verdict.attempt, verdict.fault_class) == ("train", 1, "comm_slow")
    assert (verdict.component, verdict.side) == ("nic:h3/eth1", None)
    assert verdict.ambiguous_with == ("link:h3/eth1--leaf1",)
    assert (verdict.since_ns, verdict.last_seen_ns) == (window.start_ns, window.end_ns)
    assert "nic:h2/eth1" in {part.component for part in verdict.ruled_out}


def test_every_fault_of_a_window_gets_its_verdict() -> None:
    pairs = measured(ring(), lambda *pair: bool({"h1/eth0", "h5/eth2"} & set(pair)))
    found = judge(facts(0, pairs), fabric(), None, OPTIONS)
    assert found is not None
    assert {verdict.component for verdict in found} == {"nic:h1/eth0", "nic:h5/eth2"}


@pytest.mark.parametrize(("transport", "cap"), [*CONFIDENCE_CAPS.items(), ("shm", 0.5)])
def test_transport_caps_the_confidence(transport: str | None, cap: float) -> None:
    assert verdict_on(slow_nic(transport)).confidence == cap


def test_least_trusted_transport_of_the_window_decides() -> None:
    sockets = [row((f"a{src}", f"a{dst}"), transport="socket") for src, dst in mesh(hosts=4)]
    both = pa.concat_tables([slow_nic(), table(sockets)])
    assert verdict_on(both).confidence == CONFIDENCE_CAPS["socket"]


def test_doubt_between_parts_lowers_the_confidence_below_the_cap() -> None:
    verdict = verdict_on(measured(ring(), lambda src, dst: src == "h3/eth1"))
    assert verdict.component == "link:h3/eth1--h4/eth1"
    assert verdict.confidence == pytest.approx(1 / 3, abs=0.01)


def test_nothing_justifies_draining_a_node_yet() -> None:
    assert verdict_on(slow_nic(times=10.0)).grade == "alert"
    assert max(CONFIDENCE_CAPS.values()) < OPTIONS.isolate_confidence


def test_sure_enough_verdict_would_justify_it() -> None:
    found = judge(facts(0, slow_nic()), fabric(), None, AnalyzerOptions(isolate_confidence=0.9))
    assert found is not None
    assert [verdict.grade for verdict in found] == ["isolate"]


def test_silent_hosts_lower_the_coverage_and_are_named() -> None:
    found = judge(facts(0, slow_nic(), silent=["h7", "h6"]), fabric(), None, OPTIONS)
    assert found is not None
    assert found[0].coverage == 0.75
    assert found[0].evidence[0]["silent_hosts"] == ["h6", "h7"]


def test_impact_is_how_much_longer_a_step_takes_and_who_waits() -> None:
    usual = facts(operations=960).pace
    assert usual is not None
    impact = verdict_on(slow_nic(), usual_pace=usual).impact
    assert (impact.step_time_ratio, impact.ranks_waiting) == (1.5, 63)


def test_impact_is_unknown_without_a_usual_pace() -> None:
    assert verdict_on(slow_nic()).impact.step_time_ratio is None


def test_reason_names_part_number_and_doubt() -> None:
    assert verdict_on(slow_nic(times=3.0)).reason == (
        "nic:h3/eth1 needs 3.0 times the wire time per byte, both ways, on 2 connections, while 30 others that carry "
        "the same are normal; it could as well be link:h3/eth1--leaf1"
    )


def test_reason_speaks_of_one_connection_and_its_direction() -> None:
    slow = ("h3/eth0", "h4/eth0")
    assert verdict_on(measured(mesh(), lambda *pair: pair == slow)).reason == (
        "link:h3/eth0--h4/eth0 needs 2.0 times the wire time per byte, sending, on 1 connection, while 55 others "
        "that carry the same are normal"
    )


def test_reason_tells_receiving_from_sending() -> None:
    reason = verdict_on(measured(mesh(), lambda src, dst: dst == "h3/eth0")).reason
    assert reason.startswith("nic:h3/eth0 needs 2.0 times the wire time per byte, receiving, on 7 connections")


def test_figures_in_the_evidence_are_those_of_the_matrix() -> None:
    pairs = table(
        row(pair, 1.9 if pair[0] == "h3/eth1" else 2.1 if pair[1] == "h3/eth1" else 1 + number / 1000)
        for number, pair in enumerate(ring())
    )
    matrix = build_matrix(pairs, fabric(), DelayOptions())
    assert matrix is not None
    (evidence,) = verdict_on(pairs).evidence
    window = facts(3).window
    assert (evidence["kind"], evidence["pairs_compared"]) == ("delay_matrix", 32)
    assert (evidence["from"], evidence["to"]) == (rfc3339(window.start_ns), rfc3339(window.end_ns))
    assert evidence["median_ns_per_byte"] == round(float(np.median(matrix.ns_per_byte)), 4)
    numbers = {(str(src), str(dst)): number for number, (src, dst) in enumerate(matrix.pairs)}
    expected = [numbers["h2/eth1", "h3/eth1"], numbers["h3/eth1", "h4/eth1"]]
    assert [numbers[pair["from"], pair["to"]] for pair in evidence["slow_pairs"]] == expected, "the worst first"
    for number, pair in zip(expected, evidence["slow_pairs"], strict=True):
        assert pair["ns_per_byte"] == round(float(matrix.ns_per_byte[number]), 4)
        assert pair["ratio"] == round(float(matrix.ratio[number]), 2)
        assert pair["sigmas"] == round(float(matrix.sigmas[number]), 1)


def test_evidence_shows_only_the_worst_pairs() -> None:
    """A slow NIC of a mesh has fourteen slow pairs; eight of them are enough for a person."""
    pairs = table(
        row(pair, 2 + number / 100 if "h3/eth0" in pair else 1.0) for number, pair in enumerate(mesh(hosts=8))
    )
    (evidence,) = verdict_on(pairs).evidence
    ratios = [pair["ratio"] for pair in evidence["slow_pairs"]]
    assert len(ratios) == 8
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(2.52)


def test_verdict_survives_the_way_through_json() -> None:
    verdict = verdict_on(slow_nic())
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict.as_json()["class"] == "comm_slow"


def test_slow_nic_is_found_without_topology_too() -> None:
    found = judge(facts(0, slow_nic()), None, None, OPTIONS)
    assert found is not None
    assert [(verdict.component, verdict.ambiguous_with) for verdict in found] == [("nic:h3/eth1", ())]
