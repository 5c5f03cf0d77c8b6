"""Guests are shared out evenly, and a stage without copies is said to be lost."""

from functools import lru_cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput, NotPresent
from planner.pipeline.schedule import ProfileOptions, Times, Worker, find_load, profile_stages, share_guests
from simulator.scenario import find_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry
from tests.builders import SECOND, T0
from tests.planner.pipeline.grids import EXAMPLE, ONE_GONE, failures_for, shapes


def test_six_guests_for_two_peers_are_three_each_and_a_stage_without_copies_is_lost() -> None:
    share = share_guests(EXAMPLE, ONE_GONE, 2)
    assert (share.live, share.each, share.more) == ((0, 2), 3, 0)
    assert [find_load(EXAMPLE, ONE_GONE, stage) for stage in range(4)] == [6, 6, 9, 6]
    with pytest.raises(BadInput, match="stage 3 has lost all 3 copies: no peer can stand in, only a restart"):
        share_guests(EXAMPLE, {Worker(pipeline, 3) for pipeline in range(3)}, 3)


@given(st.data())
def test_every_guest_has_a_peer(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    failed = data.draw(failures_for(shape))
    for stage in range(shape.stages):
        share = share_guests(shape, failed, stage)
        lost = shape.pipelines - len(share.live)
        assert len(share.live) * share.each + share.more == lost * shape.micro_batches
        assert share.more < len(share.live)


@lru_cache(maxsize=1)
def rows() -> pa.Table:
    """Four seconds of four stages; the first has 6 ms and the last 15 ms more to do, forward and backward."""
    scenario = find_scenario("uneven-stages-strong-ib")
    small = scenario.model_copy(
        update={"cluster": scenario.cluster.model_copy(update={"hosts": 2})}
    )  # one pipeline, tp 4
    telemetry = SimulatedTelemetry(Simulation(small, seed=1), Identity("train", T0))
    return telemetry.advance(T0 + 4 * SECOND)["collectives"]


def pipelines(table: pa.Table) -> list[int]:
    pairs = [row["comm"] for row in table.select(["comm", "func"]).to_pylist() if row["func"] == "Send"]
    return sorted(set(pairs))


def profiled(options: ProfileOptions | None = None) -> Times:
    return profile_stages(rows(), pipelines(rows()), options)


def test_forward_and_backward_of_each_stage_and_the_transfers_are_found() -> None:
    times = profiled()
    backward = [one + other for one, other in zip(times.input, times.weight, strict=True)]
    # 20 ms forward and 40 ms backward, some more in the first stage, and each with its all-reduce in tp of 0.3 ms
    assert times.forward[:3] == pytest.approx((0.026, 0.020, 0.020), rel=0.1)
    assert backward[:3] == pytest.approx((0.046, 0.040, 0.040), rel=0.1)
    # The last stage shows both in one stretch.
    assert times.work(3) == pytest.approx(0.090, rel=0.1)
    assert max(range(4), key=times.work) == 3
    assert 0.001 < times.transfer < 0.01  # 32 MB over a NIC of 100 Gbit/s take 2.6 ms


def test_the_halves_of_a_backward_are_as_stated() -> None:
    times = profiled(ProfileOptions(weight_share=0.25))
    assert [one / other for one, other in zip(times.weight, times.input, strict=True)] == pytest.approx([1 / 3] * 4)


def test_without_a_pipeline_or_with_too_few_rows_there_is_no_profile() -> None:
    with pytest.raises(NotPresent, match="no sends and receives"):
        profile_stages(rows().slice(0, 0), [1])
    comm = pipelines(rows())[0]
    mine = [row for row in rows().to_pylist() if row["comm"] == comm]
    few = pa.Table.from_pylist(sorted(mine, key=lambda row: row["start_ns"])[:10], rows().schema)
    with pytest.raises(NotPresent, match="too few sends and receives"):
        profile_stages(few, [comm])
