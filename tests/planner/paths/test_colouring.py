"""Colours are shared evenly at every vertex of both sides, and in groups where their number is a power of two."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.paths.colouring import colour_evenly


def assert_even(key: np.ndarray, colour: np.ndarray, colours: int) -> None:
    table = np.zeros((int(key.max(initial=0)) + 1, colours), np.int64)
    np.add.at(table, (key, colour), 1)
    each = table.sum(axis=1)
    assert (table.min(axis=1) >= each // colours).all()
    assert (table.max(axis=1) <= -(-each // colours)).all()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120), st.integers(1, 9), st.integers(1, 4))
def test_each_vertex_has_each_colour_equally_often_give_or_take_one(
    edges: list[tuple[int, int]], colours: int, group_size: int
) -> None:
    near, far = np.array(edges, np.int64).reshape(-1, 2).T
    groups = [ends // group_size for ends in (near, far)]
    colour = colour_evenly([near, groups[0]], [far, groups[1]], colours)
    assert_even(near, colour, colours)
    assert_even(far, colour, colours)
    if colours.bit_count() == 1:
        assert_even(groups[0], colour, colours)
        assert_even(groups[1], colour, colours)


@pytest.mark.parametrize("colours", [31, 32])
def test_thousands_of_edges_are_coloured_evenly(colours: int) -> None:
    rng = np.random.default_rng(3)
    near, far = rng.integers(0, 128, (2, 20_000))
    colour = colour_evenly([near], [far], colours)
    assert_even(near, colour, colours)
    assert_even(far, colour, colours)
