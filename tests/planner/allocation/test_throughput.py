"""Tables hold what was measured, keep the model's shape elsewhere, and say which is which."""

from dataclasses import replace

import pytest

from lockstep.errors import BadInput
from planner.allocation import throughput
from planner.allocation.throughput import Machine, Sample, Throughput, Transformer, tabulate

MODEL = tabulate({1: 100.0, 2: 190.0, 4: 360.0, 8: 640.0})


def seen(nodes: int, *per_s: float) -> list[Sample]:
    return [Sample(nodes, value) for value in per_s]


def test_counts_that_were_seen_have_their_median_and_others_the_shape_of_the_model() -> None:
    table = throughput.calibrate(seen(4, 1.4, 1.5, 9.0), work_each=200.0, model=MODEL)
    assert table.at(4) == 300.0
    assert table.measured == {4}
    table = throughput.calibrate(seen(4, 1.8, 1.8, 1.8), work_each=100.0, model=MODEL)
    assert [table.at(count) for count in MODEL.counts] == pytest.approx([50.0, 95.0, 180.0, 320.0])
    table = throughput.calibrate([*seen(1, 1, 1, 1), *seen(4, 1.8, 1.8, 1.8)], work_each=100.0, model=MODEL)
    assert table.at(2) == pytest.approx(190.0 * 0.75)
    assert table.at(8) == pytest.approx(320.0)
    table = throughput.calibrate(seen(3, 2.0, 2.0, 2.0), work_each=100.0, model=MODEL)
    assert (table.at(3), table.at(4)) == (200.0, 360.0)
    assert table.measured == {3}
    assert throughput.calibrate(seen(4, 1.8, 1.8), work_each=100.0, model=MODEL) == MODEL
    assert [MODEL.at(count) for count in (0, 3, 9)] == [0.0, 0.0, 0.0]


def test_a_table_out_of_order_or_without_rates_is_refused() -> None:
    for counts, rates in (((2, 1), (1.0, 2.0)), ((1,), ()), ((0, 1), (0.0, 1.0)), ((1, 1), (1.0, 1.0))):
        with pytest.raises(BadInput, match="one rate for each count, counts upwards from 1"):
            Throughput(counts, rates)
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="rates that are no numbers of 0 or more"):
            tabulate({1: rate})


SEVEN_B = Transformer(parameters=6.7e9, layers=32, hidden=4096, sequence=2048, global_batch=512)
LARGE = Transformer(parameters=175e9, layers=96, hidden=12288, sequence=2048, global_batch=1536)
MACHINE = Machine()


def test_a_model_needs_its_nodes_and_does_more_but_less_each_with_more() -> None:
    assert throughput.best_layout(SEVEN_B, MACHINE, 1) is not None
    assert throughput.best_layout(LARGE, MACHINE, 2) is None
    assert throughput.best_layout(LARGE, MACHINE, 16) is not None
    table = throughput.model_throughput(SEVEN_B, MACHINE, range(1, 17))
    assert set(table.counts) >= {1, 2, 4, 8, 16}
    assert not {7, 11, 13} & set(table.counts)
    assert table.measured == frozenset()
    table = throughput.model_throughput(SEVEN_B, MACHINE, [1, 2, 4, 8, 16, 32])
    each = [rate / count for count, rate in zip(table.counts, table.rates, strict=True)]
    assert list(table.rates) == sorted(table.rates)
    assert each == sorted(each, reverse=True)
    table = throughput.model_throughput(LARGE, MACHINE, [16, 32, 48, 64])
    for count, rate in zip(table.counts, table.rates, strict=True):
        assert 0.2 < rate / (count * MACHINE.gpus * MACHINE.flops) < MACHINE.efficiency


def test_the_bubble_is_that_of_1f1b() -> None:
    # One replica over two stages without tensor parallelism: compute times 1 + (P - 1) / M, and no all-reduce.
    machine = Machine(gpus=2, memory_gib=1e6, nvlink_bytes_s=1e30, nic_bytes_s=1e-30)
    lone = replace(SEVEN_B, global_batch=4)
    found = throughput.best_layout(lone, replace(machine, nvlink_bytes_s=1e-30), 1)
    assert found is not None
    layout, seconds = found
    assert layout == throughput.Layout(tp=1, pp=2, dp=1, micro_batches=4)
    assert seconds == pytest.approx(lone.flop / (2 * machine.flops * machine.efficiency) * (1 + 1 / 4))
