"""Incidents are shown with readable times and their outcome; the quick list says the same as the thorough one."""

import asyncio
import json

import pytest

from api.query import read_cursor
from api.views.incidents import IncidentFilter, IncidentPages, IncidentView, find_incident, render_page, view_incident
from lockstep.clock import ManualClock
from lockstep.errors import NotPresent
from lockstep.execution import Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_decisions, save_outcome
from lockstep.state.documents import read_document
from lockstep.state.incidents import outcomes_of, page_incidents, save_incidents
from lockstep.verdict import Incident
from tests.api.views.build import incident_on
from tests.builders import SECOND, T0
from tests.lockstep.state.build import decision

ALL = IncidentFilter()


def list_shown(control: ControlDatabase, wanted: IncidentFilter, limit: int) -> list[IncidentView]:
    """Return incidents as they are shown, each read and checked anew."""
    stored = page_incidents(control, **dict(wanted), limit=limit)
    outcomes = outcomes_of(control, [each.id for each in stored])
    return [view_incident(read_document(Incident, each.document), outcomes.get(each.id)) for each in stored]


def confirm(control: ControlDatabase, incident: str) -> Outcome:
    outcome = Outcome(incident=incident, was_right=True, part="nic:h3/eth1", who="ann", why="swapped", ts_ns=T0)
    save_outcome(control, outcome)
    return outcome


def test_incident_comes_with_readable_times_its_outcome_and_its_decisions(control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    outcome = confirm(control, "i1")
    (shown,) = list_shown(control, ALL, 10)
    assert (shown.opened_at, shown.closed_at, shown.outcome) == ("2023-11-14T22:13:20Z", None, outcome)
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    save_decisions(control, [decision("d1", incident="i1", created_ns=T0 + SECOND)], None)
    assert [each.id for each in find_incident(control, "i1").decisions] == ["d1"]
    with pytest.raises(NotPresent, match="there is no incident 'i9'"):
        find_incident(control, "i9")


def test_quick_list_says_what_the_thorough_one_says(control: ControlDatabase) -> None:
    save_incidents(control, [incident_on("nic:h3/eth1", f"i{n}", opened_ns=T0 + n) for n in range(5)], None)
    confirm(control, "i3")
    page = render_page(control, ALL, 3, None)
    shown = [each.model_dump(mode="json", by_alias=True) for each in list_shown(control, ALL, 3)]
    assert json.loads(page.body) == {"items": shown, "next": page.next}
    assert read_cursor(page.next, int, str) == (T0 + 2, "i2")
    assert render_page(control, ALL, 3, (T0 + 2, "i2")).next is None


def test_page_that_is_kept_is_rendered_anew_as_soon_as_something_was_written_or_after_a_second(
    control: ControlDatabase,
) -> None:
    clock = ManualClock()
    pages = IncidentPages(control, clock)
    first = pages.render(ALL, 3, None)
    clock.advance(1.5)
    assert pages.render(ALL, 3, None) is not first
    pages = IncidentPages(control, ManualClock())
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    first = pages.render(ALL, 3, None)
    assert b'"outcome":null' in first.body
    assert pages.render(ALL, 3, None) is first
    assert pages.render(ALL, 2, None) is not first
    confirm(control, "i1")
    assert b'"who":"ann"' in pages.render(ALL, 3, None).body
    save_incidents(control, [incident_on("nic:h9/eth1", "i1")], None)
    assert b"nic:h9/eth1" in pages.render(ALL, 3, None).body


def test_incidents_are_chosen_by_class_and_by_the_part_that_the_verdict_names(control: ControlDatabase) -> None:
    told = [
        incident_on("nic:h3/eth1", "i1"),
        incident_on("NIC:h3/eth1", "i2"),
        incident_on("link:leaf1--spine2", "i3", fault_class="comm_hang"),
    ]
    save_incidents(control, told, None)
    by_part = list_shown(control, IncidentFilter(component="nic:h3/eth1"), 10)
    assert [each.id for each in by_part] == ["i1"]
    # It is among what was ruled out in every verdict, which does not count.
    by_link = list_shown(control, IncidentFilter(component="link:leaf1--spine2"), 10)
    assert [each.id for each in by_link] == ["i3"]
    assert [each.id for each in list_shown(control, IncidentFilter(fault_class="comm_hang"), 10)] == ["i3"]


def test_page_that_was_up_to_date_a_moment_ago_is_shown_unless_something_was_written_here(
    control: ControlDatabase,
) -> None:
    clock = ManualClock(T0)
    pages = IncidentPages(control, clock)

    def shown() -> bytes:
        return asyncio.run(pages.find(ALL, 10, None)).body

    assert shown() == b'{"items":[],"next":null}'
    save_incidents(control, [incident_on("nic:h3/eth1", "i1")], None)
    assert b"nic:h3/eth1" not in shown()
    pages.forget()
    assert b"nic:h3/eth1" in shown()
    save_incidents(control, [incident_on("nic:h9/eth1", "i1")], None)
    clock.advance(0.5)
    assert b"nic:h9/eth1" in shown()


def test_pages_and_queries_that_nobody_asks_for_again_do_not_fill_the_memory(control: ControlDatabase) -> None:
    pages = IncidentPages(control, ManualClock(T0))

    async def ask_for_many() -> None:
        for number in range(200):
            await pages.find(IncidentFilter(job=f"j{number}"), 1, None)

    asyncio.run(ask_for_many())
    assert len(pages._pages) <= 64
    pages = IncidentPages(control, ManualClock(T0))
    asked = (ALL, 3, None)
    pages.learn(b"limit=3", asked)
    assert pages.meaning_of(b"limit=3") == asked
    assert pages.meaning_of(b"limit=4") is None
    pages.learn(b"x" * 2_000, asked)
    assert pages.meaning_of(b"x" * 2_000) is None
    for number in range(1_000):
        pages.learn(b"%d" % number, asked)
    assert len(pages._meanings) <= 64
