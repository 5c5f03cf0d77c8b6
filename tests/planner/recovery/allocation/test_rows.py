"""Rows hold the least loss of each total, and the choices behind a total can be found again."""

import numpy as np

from planner.recovery.allocation.rows import NOBODY, Menu, Row, add_all, add_job, go_back


def menu(choices: dict[int, float]) -> Menu:
    return Menu(np.array(sorted(choices)), np.array([choices[count] for count in sorted(choices)]))


TWO = [menu({0: 3.0, 2: 0.0}), menu({1: 1.0, 4: 0.0})]


def test_a_row_holds_the_least_loss_of_each_total() -> None:
    row = add_all(TWO, 6)[-1]
    assert row.first == 1
    assert row.loss.tolist() == [4.0, np.inf, 1.0, 3.0, np.inf, 0.0]


def test_totals_above_the_capacity_are_not_kept() -> None:
    assert add_all(TWO, 4)[-1].last == 4
    assert not len(add_all(TWO, 0)[-1].loss)


def test_ends_that_lose_too_much_are_cut_off() -> None:
    row = add_job(NOBODY, menu({0: 9.0, 1: 1.0, 2: 0.0, 3: 7.0}), 9, worst=2.0)
    assert (row.first, row.loss.tolist()) == (1, [1.0, 0.0])


def test_at_most_never_gets_worse_with_more_nodes() -> None:
    assert add_all(TWO, 6)[-1].at_most(7).tolist() == [np.inf, 4.0, 4.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_outside_of_a_row_there_is_nothing() -> None:
    asked = np.array([-1, 0, 1])
    assert Row(0, np.array([5.0])).at(asked).tolist() == [np.inf, 5.0, np.inf]
    assert np.isinf(Row(0, np.zeros(0)).at(asked)).all()


def test_the_way_back_finds_the_choices_of_each_total() -> None:
    rows = add_all(TWO, 6, to_the_end=False)
    picks = go_back(rows, TWO, np.array([2, 2, 1]), np.array([3, 6, 2]))
    assert picks.tolist() == [[1, 0], [1, 1], [1, 0]]
