"""Simulated probes find the way of a port, and meet what is wrong on it: delay, loss, and links that are down."""

from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import JobShape, Story, Telling
from lockstep.sim.telemetry import Identity, SimulatedTelemetry
from tests.builders import T0
from tests.lockstep.sim.build import story

LINK = "link:leaf0--spine1"


def probed(*lines: str, seconds: int = 40) -> list[dict[str, Any]]:
    job = JobShape(compute_ms=1e6)  # nothing but probes
    told = story(*lines, job=job, telling=Telling(paths=True), duration_s=float(seconds))
    return rows_of(told, seconds)


def rows_of(told: Story, seconds: int) -> list[dict[str, Any]]:
    telemetry = SimulatedTelemetry(Simulation(told, 1), Identity("j1", T0))
    rows: list[dict[str, Any]] = telemetry.advance(T0 + seconds * NS_PER_S)["probes"].to_pylist()
    return rows


def test_every_nic_probes_every_other_host_in_turn() -> None:
    rows = probed(seconds=3)
    assert len(rows) == 3 * 4 * 2
    assert {(row["host"], row["dst"]) for row in rows} == {
        (f"h{a}", f"h{b}") for a in range(4) for b in range(4) if a != b
    }
    assert all(row["src_nic"] == row["dst_nic"] for row in rows)


def test_hops_are_the_switches_between_and_ports_spread_over_the_spines() -> None:
    rows = probed(seconds=30)
    inside = [row for row in rows if int(row["host"][1]) // 2 == int(row["dst"][1]) // 2]
    across = [row for row in rows if row not in inside]
    assert {tuple(row["hops"]) for row in inside} == {("leaf0",), ("leaf1",)}
    assert {tuple(row["hops"]) for row in across} == {
        (f"leaf{a}", f"spine{spine}", f"leaf{1 - a}") for a in range(2) for spine in range(2)
    }


def test_healthy_fabric_loses_nothing() -> None:
    assert all(5_000 < row["rtt_ns"] < 20_000 for row in probed())


@pytest.mark.parametrize(("what", "losing"), [("losing 50 %", True), ("down", True), ("delayed 2 ms", False)])
def test_probe_meets_what_is_wrong_with_a_link_on_its_way(what: str, losing: bool) -> None:
    rows = probed(f"at 0 s fail {LINK} {what}")
    over = [row for row in rows if "spine1" in row["hops"]]
    # The way back has a port of its own, so a probe over the other spine may come back over this one.
    inside = [row for row in rows if len(row["hops"]) == 1]
    assert all(row["rtt_ns"] is not None and row["rtt_ns"] < 20_000 for row in inside)
    if losing:
        assert any(row["rtt_ns"] is None for row in over)
    else:
        assert all(row["rtt_ns"] > 1_500_000 for row in over)


def test_story_that_tells_no_paths_has_no_probes() -> None:
    telemetry = SimulatedTelemetry(Simulation(story(), 1), Identity("j1", T0))
    assert "probes" not in telemetry.advance(T0 + 2 * NS_PER_S)
