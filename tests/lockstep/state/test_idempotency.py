"""A key is claimed by one, finished or dropped, and forgotten after a day."""

import pytest

from lockstep.state import idempotency
from lockstep.state.database import ControlDatabase
from lockstep.state.idempotency import KEPT_NS, STUCK_NS, Earlier, claim, drop, finish

NOW = 10**18


def test_first_claim_is_the_caller_s_and_the_second_sees_it(db: ControlDatabase) -> None:
    assert claim(db, "k", "asked", NOW) is None
    assert claim(db, "k", "other", NOW + 1) == Earlier("asked", None, None)


def test_finished_act_is_answered(db: ControlDatabase) -> None:
    claim(db, "k", "asked", NOW)
    finish(db, "k", 201, "sealed")
    assert claim(db, "k", "asked", NOW + 1) == Earlier("asked", 201, "sealed")


def test_dropped_act_may_be_done_again(db: ControlDatabase) -> None:
    claim(db, "k", "asked", NOW)
    drop(db, "k")
    assert claim(db, "k", "asked", NOW + 1) is None


def test_act_whose_process_died_may_be_done_again(db: ControlDatabase) -> None:
    claim(db, "k", "asked", NOW)
    assert claim(db, "k", "asked", NOW + STUCK_NS - 1) is not None
    assert claim(db, "k", "asked", NOW + STUCK_NS) is None


def test_answers_are_kept_for_a_day(db: ControlDatabase) -> None:
    claim(db, "k", "asked", NOW)
    finish(db, "k", 200, "sealed")
    assert claim(db, "k", "asked", NOW + KEPT_NS - 1) is not None
    assert claim(db, "k", "asked", NOW + KEPT_NS) is None


def test_answers_are_bounded_and_the_oldest_go(db: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST", 3)
    for number in range(5):
        claim(db, f"k{number}", "asked", NOW + number)
        finish(db, f"k{number}", 200, "sealed")
    kept = [number for number in range(4, 1, -1) if claim(db, f"k{number}", "asked", NOW + 10)]
    assert kept == [4, 3, 2]
    assert claim(db, "k0", "asked", NOW + 10) is None
