"""Changes are numbered in the order of their commits, also by several writers at once; a thing has one number."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import changes_since, newest_change, note_changes, save_incidents
from tests.lockstep.state.build import decision, incident

ROUNDS = 20


def test_nothing_has_changed_at_first(db: ControlDatabase) -> None:
    assert newest_change(db) == 0
    assert changes_since(db, 0, 10) == []


def test_change_comes_with_the_thing_as_it_is_now(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1")], None)
    save_incidents(db, [incident("i1", state="closed")], None)
    save_decisions(db, [decision("d1")], None)
    first, second = changes_since(db, 0, 10)
    assert (first.number, first.first, first.kind, first.subject) == (2, 1, "incident", "i1")
    assert '"state":"closed"' in first.document
    assert (second.number, second.first, second.kind, second.subject) == (3, 3, "decision", "d1")


def test_reader_goes_on_where_it_was(db: ControlDatabase) -> None:
    save_incidents(db, [incident(f"i{number}") for number in range(5)], None)
    assert [change.subject for change in changes_since(db, 2, 2)] == ["i2", "i3"]
    assert changes_since(db, 5, 10) == []


def test_act_that_is_undone_changes_nothing(db: ControlDatabase) -> None:
    with suppress(ZeroDivisionError), db.begin() as connection:
        note_changes(connection, "incident", ["i1"])
        raise ZeroDivisionError
    assert newest_change(db) == 0


def test_number_of_something_that_is_gone_is_passed_over(db: ControlDatabase) -> None:
    with db.begin() as connection:
        note_changes(connection, "incident", ["never-saved"])
    save_incidents(db, [incident("i1")], None)
    assert [change.subject for change in changes_since(db, 0, 10)] == ["i1"]


def test_reader_misses_nothing_while_several_write(db: ControlDatabase) -> None:
    """A number that shows up after a higher one was read would be missed for ever."""
    is_over = threading.Event()

    def write(who: str) -> None:
        for number in range(ROUNDS):
            save_incidents(db, [incident(f"{who}-{number}")], None)

    def read() -> list[str]:
        heard: list[str] = []
        known = 0
        while True:
            was_over = is_over.is_set()
            page = changes_since(db, known, 7)
            heard += [change.subject for change in page]
            known = page[-1].number if page else known
            if was_over and not page:
                return heard

    with ThreadPoolExecutor(4) as threads:
        reading = threads.submit(read)
        for writer in [threads.submit(write, who) for who in "abc"]:
            writer.result()
        is_over.set()
        heard = reading.result()
    assert sorted(heard) == sorted(f"{who}-{number}" for who in "abc" for number in range(ROUNDS))
