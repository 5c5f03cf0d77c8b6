"""Progress tells a hang from outside: who is behind, who is open since when, and what the oldest step waits for."""

from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Doing, JobShape, Layout, Story
from lockstep.sim.telemetry import Identity, SimulatedTelemetry
from tests.builders import T0
from tests.lockstep.sim.build import story

SECONDS = 6


def looked_at(told: Story) -> list[list[dict[str, Any]]]:
    """Return the rows of each second."""
    telemetry = SimulatedTelemetry(Simulation(told, 1), Identity("j1", T0))
    rows = [telemetry.advance(T0 + second * NS_PER_S).get("progress") for second in range(1, SECONDS + 1)]
    return [table.to_pylist() for table in rows if table]


def test_healthy_ranks_are_looked_at_every_second_and_never_far_apart() -> None:
    seconds = looked_at(story())
    assert [len(rows) for rows in seconds] == [16] * SECONDS
    for rows in seconds:
        assert (
            max(row["enqueued"] for row in rows) - min(row["enqueued"] for row in rows) <= 2
        )  # one step's operations
        assert all(row["done"] <= row["started"] <= row["enqueued"] <= row["done"] + 2 for row in rows)
    done = [min(row["done"] for row in rows) for rows in seconds]
    assert done == sorted(done)
    assert done[-1] > done[0] > 0


def test_idle_rank_has_nothing_open() -> None:
    for row in (row for rows in looked_at(story()) for row in rows):
        is_open = row["enqueued"] > row["done"]
        assert is_open == (row["oldest_open_ns"] is not None) == (row["open_bytes"] is not None)
        assert is_open or row["head_state"] == "idle"


def test_rank_that_never_enqueues_is_the_one_behind() -> None:
    rows = looked_at(story("at 2 s fail rank:5 absent"))[-1]
    (absent,) = [row for row in rows if row["rank"] == 5]
    others = [row for row in rows if row["rank"] != 5]
    assert all(row["enqueued"] > absent["enqueued"] for row in others)
    assert absent["enqueued"] == absent["done"]
    assert (absent["head_state"], absent["oldest_open_ns"]) == ("idle", None)
    assert all(T0 + 2 * NS_PER_S <= row["oldest_open_ns"] < T0 + 3 * NS_PER_S for row in others)


@pytest.mark.parametrize("transport", ["ib", "socket"])
def test_open_operation_goes_on_being_told_while_it_stands(transport: str) -> None:
    told = story("at 2 s fail link:h1/eth0--leaf0 down")
    told = told.model_copy(update={"cluster": told.cluster.model_copy(update={"transport": transport})})
    last = [{row["rank"]: row for row in rows} for rows in looked_at(told)[-3:]]
    for rank in range(16):
        stands = [
            {key: value for key, value in rows[rank].items() if key != "ts_ns"} for rows in last
        ]  # nothing but the moment changes
        assert stands[0] == stands[1] == stands[2]
    assert "wire" in {row["head_state"] for row in last[-1].values()}


def test_rank_with_other_arguments_shows_other_bytes() -> None:
    rows = looked_at(story("at 2 s fail rank:5 mismatched"))[-1]
    sizes = {row["rank"]: row["open_bytes"] for row in rows}
    assert sizes.pop(5) not in set(sizes.values())
    assert len(set(sizes.values())) == 1


def test_sends_and_receives_are_told_per_peer() -> None:
    job = JobShape(layout=Layout(tp=4, pp=4), step=(Doing(do="pipeline", ms=20, backward_ms=40, mb=8),))
    rows = looked_at(story(job=job))[-1]
    neighbours = {(row["func"], row["rank"], row["peer"]) for row in rows}
    assert neighbours == {
        (func, stage, stage + by)
        for func in ("Send", "Recv")
        for stage in range(4)
        for by in (-1, 1)
        if 0 <= stage + by < 4
    }
