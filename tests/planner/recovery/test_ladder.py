"""A cure that did not hold raises the severity of the same part, for an hour, and of no other."""

import pytest

from lockstep.execution import Execution, ExecutionState
from planner.recovery.ladder import LadderOptions, Standing, find_standing, rung_of
from planner.recovery.taxonomy import Severity
from tests.planner.recovery.build import seconds

PART = "nic:h3/eth1"


def tried(action: str, *, at_s: float = 0.0, state: ExecutionState = "done", component: str = PART) -> Execution:
    return Execution(
        decision=f"d{at_s}",
        incident="i1",
        job="train",
        action=action,
        component=component,
        state=state,
        generation=1,
        approved_by="policy",
        began_ns=seconds(at_s),
        ended_ns=seconds(at_s + 1),
    )


def standing(base: Severity, *runs: Execution, now_s: float = 100.0) -> Standing:
    return find_standing(base, "as told", PART, runs, seconds(now_s), LadderOptions(memory_s=3600))


def test_what_was_never_tried_stands_where_its_error_puts_it() -> None:
    assert standing(3) == Standing(3, "as told")


def test_each_failure_raises_the_severity() -> None:
    assert standing(3, tried("reattempt")).severity == 2
    assert standing(3, tried("reattempt"), tried("restart_process", at_s=10)) == Standing(
        1, f"restart_process did not cure {PART}", is_raised=True
    )


def test_order_of_what_is_read_does_not_matter() -> None:
    runs = [tried("reattempt"), tried("restart_process", at_s=10)]
    assert standing(3, *runs) == standing(3, *reversed(runs))


def test_cure_below_the_severity_of_the_error_lowers_nothing() -> None:
    assert standing(1, tried("reattempt")).severity == 1


@pytest.mark.parametrize(
    "run",
    [
        tried("reattempt", component="nic:h4/eth1"),
        tried("reattempt", state="undone"),
        tried("reattempt", at_s=-4000),
    ],
)
def test_other_parts_undone_cures_and_old_ones_do_not_count(run: Execution) -> None:
    assert standing(3, run) == Standing(3, "as told")


def test_where_taking_the_node_away_did_not_help_a_person_is_needed() -> None:
    assert standing(1, tried("replace")).is_exhausted
    assert not standing(1, tried("replace", state="failed")).is_exhausted


def test_every_action_that_takes_a_node_away_is_on_the_last_rung() -> None:
    assert [rung_of(action) for action in ("reattempt", "restart_process", "replace", "recycle")] == [3, 2, 1, 1]
