"""Silences fit by patterns, last for a while, end early, and are written down."""

import pytest
from pydantic import ValidationError

from lockstep.control.audit import list_audit
from lockstep.control.database import ControlDatabase
from lockstep.control.silences import Matchers, Silence, create_silence, end_silence, list_silences
from lockstep.errors import NotPresent
from tests.lockstep.control.test_deliveries import MATTER


def silence(db: ControlDatabase, until_ns: int = 100) -> Silence:
    matchers = Matchers(component="nic:h3/*")
    return create_silence(db, matchers, until_ns=until_ns, who="ada", why="cable is on its way", now_ns=5)


@pytest.mark.parametrize(
    ("matchers", "fits"),
    [
        (Matchers(component="nic:h3/*"), True),
        (Matchers(component="nic:h3/eth1", job="train", fault_class="comm_slow"), True),
        (Matchers(job="tr*n"), True),
        (Matchers(component="nic:h3/*", job="other"), False),
        (Matchers(fault_class="crash"), False),
    ],
)
def test_all_patterns_have_to_fit(matchers: Matchers, fits: bool) -> None:
    assert matchers.fit(MATTER) is fits


@pytest.mark.parametrize("given", [{}, {"component": "*", "job": "*", "class": "*"}, {"component": "?*"}])
def test_silence_over_everything_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="hides what matters"):
        Matchers.model_validate(given)


def test_silence_ends_by_itself_or_by_a_person(db: ControlDatabase) -> None:
    short, long = silence(db, 50), silence(db, 200)
    assert list_silences(db, since_ns=49) == [long, short]
    assert list_silences(db, since_ns=50) == [long]
    ended = end_silence(db, long.id, who="bob", why="mended", now_ns=60)
    assert (ended.until_ns, list_silences(db, since_ns=60)) == (60, [])
    assert [line.what for line in list_audit(db, 9)] == ["end_silence", "create_silence", "create_silence"]
    for gone in (long.id, short.id, "none"):
        with pytest.raises(NotPresent, match="that lasts"):
            end_silence(db, gone, who="bob", why="", now_ns=60)


def test_pages_break_where_they_ended(db: ControlDatabase) -> None:
    made = [silence(db, until) for until in (10, 20, 30)]
    first = list_silences(db, limit=2)
    rest = list_silences(db, limit=2, before=(first[-1].until_ns, first[-1].id))
    assert [*first, *rest] == made[::-1]
