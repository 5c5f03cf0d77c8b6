"""The model knows what does not fit, what does not divide, and that bubbles cost."""

from dataclasses import replace

import pytest

from planner.recovery.allocation.megatron import Layout, Machine, Transformer, best_layout, model_throughput

SEVEN_B = Transformer(parameters=6.7e9, layers=32, hidden=4096, sequence=2048, global_batch=512)
LARGE = Transformer(parameters=175e9, layers=96, hidden=12288, sequence=2048, global_batch=1536)
MACHINE = Machine()


def test_a_small_model_runs_on_one_node_and_a_large_one_needs_many() -> None:
    assert best_layout(SEVEN_B, MACHINE, 1) is not None
    assert best_layout(LARGE, MACHINE, 2) is None
    assert best_layout(LARGE, MACHINE, 16) is not None


def test_counts_that_divide_nothing_are_left_out() -> None:
    table = model_throughput(SEVEN_B, MACHINE, range(1, 17))
    assert set(table.counts) >= {1, 2, 4, 8, 16}
    assert not {7, 11, 13} & set(table.counts)
    assert table.measured == frozenset()


def test_more_nodes_do_more_but_less_each() -> None:
    table = model_throughput(SEVEN_B, MACHINE, [1, 2, 4, 8, 16, 32])
    each = [rate / count for count, rate in zip(table.counts, table.rates, strict=True)]
    assert list(table.rates) == sorted(table.rates)
    assert each == sorted(each, reverse=True)


def test_no_rate_is_above_what_the_machine_can_do() -> None:
    table = model_throughput(LARGE, MACHINE, [16, 32, 48, 64])
    for count, rate in zip(table.counts, table.rates, strict=True):
        assert 0.2 < rate / (count * MACHINE.gpus * MACHINE.flops) < MACHINE.efficiency


def test_the_bubble_is_that_of_1f1b() -> None:
    # One replica over two stages without tensor parallelism: compute times 1 + (P - 1) / M, and no all-reduce.
    machine = Machine(gpus=2, memory_gib=1e6, nvlink_bytes_s=1e30, nic_bytes_s=1e-30)
    lone = replace(SEVEN_B, global_batch=4)
    found = best_layout(lone, replace(machine, nvlink_bytes_s=1e-30), 1)
    assert found is not None
    layout, seconds = found
    assert layout == Layout(tp=1, pp=2, dp=1, micro_batches=4)
    assert seconds == pytest.approx(lone.flop / (2 * machine.flops * machine.efficiency) * (1 + 1 / 4))
