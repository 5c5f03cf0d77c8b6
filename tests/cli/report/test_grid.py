"""A matrix of any size becomes a picture of limited size, in which the slowest wire is still known by name."""

from dataclasses import replace

import numpy as np
import pytest

from cli.report import build_grid, level
from tests.cli.report.build import matrix


def test_cells_are_senders_down_and_receivers_across_in_the_order_of_their_numbers() -> None:
    grid = build_grid(matrix(hosts=12, nics=1, slow=(2, 0)), largest=20)
    assert grid is not None
    assert grid.rows == grid.columns == tuple(f"h{number}/eth0" for number in range(12))
    assert grid.ratio[2, 3] == 4.0
    assert np.isnan(grid.ratio[3, 2])
    assert np.argwhere(grid.hot).tolist() == [[2, 3]]


def test_large_matrix_is_binned_and_the_worst_of_a_bin_shows() -> None:
    grid = build_grid(matrix(hosts=100, nics=8, slow=(57, 5)), largest=16)
    assert grid is not None
    assert grid.ratio.shape == (16, 16)
    assert (grid.ends_per_cell, grid.wires) == (50, 800)
    assert grid.hottest is not None
    assert (grid.hottest.source, grid.hottest.target, grid.hottest.ratio) == ("h57/eth5", "h58/eth5", 4.0)
    assert grid.hot[grid.hottest.row, grid.hottest.column]
    assert grid.rows[0] == "h0/eth0 … h6/eth1"


def test_matrix_without_slow_wires_has_no_hottest() -> None:
    grid = build_grid(matrix(slow=None), largest=16)
    assert grid is not None
    assert grid.hottest is None


@pytest.mark.parametrize("nothing", [None, matrix(hosts=0)])
def test_nothing_compared_is_no_picture(nothing: object) -> None:
    assert build_grid(nothing, 16) is None  # type: ignore[arg-type]  # both kinds of nothing


def test_wire_whose_delay_is_no_number_is_an_empty_cell() -> None:
    plain = matrix(hosts=3, nics=1, slow=(0, 0))
    grid = build_grid(replace(plain, ratio=np.array([np.nan, 1.0, np.inf])), largest=8)
    assert grid is not None
    assert np.isfinite(grid.ratio).sum() == 1
    assert grid.hottest is None
    assert not grid.hot.any()


def test_darker_is_slower() -> None:
    assert [level(ratio) for ratio in (float("nan"), 0.9, 1.2, 1.6, 9.0)] == [0, 1, 2, 3, 4]
