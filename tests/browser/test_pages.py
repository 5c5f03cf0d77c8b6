"""Every page in a real browser: it works, asks nobody else, and is clean for axe in light and in dark."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from lockstep.decision import Cost, Option
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from tests.api.build import Api
from tests.api.dashboard.build import decision_of, incident_of
from tests.browser.conftest import Window

pytestmark = pytest.mark.slow

_AXE = Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8")
PAGES = [
    "/",
    "/incidents",
    "/incidents/i1",
    "/job?job=train",
    "/matrix?job=train",
    "/lags?job=train",
    "/topology",
    "/what-if?job=train",
    "/parts",
    "/parts?component=nic:h3/eth1",
    "/scorecard",
    "/agents",
    "/settings",
    "/login",
]


def find_barriers(page: Page) -> list[str]:
    """Return what keeps somebody from using the page, as axe finds it."""
    # Through the debugger, as the policy of the page lets no foreign script in.
    page.evaluate(_AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("path", PAGES)
def test_page_is_whole_and_without_barriers_in_light_and_dark(window: Window, path: str) -> None:
    page = window.open(path)
    assert page.locator("h1").count() == 1
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert find_barriers(page) == [], theme


def test_page_of_an_error_is_without_barriers_too(window: Window) -> None:
    page = window.open("/incidents/nope")
    assert page.locator("h1").inner_text() == "Not found"
    assert find_barriers(page) == []
    window.complaints[:] = [each for each in window.complaints if "404" not in each]


def test_report_prints_without_what_is_only_for_screens(window: Window) -> None:
    page = window.open("/incidents/i1")
    assert page.locator("header.top").is_visible()
    page.emulate_media(media="print")
    assert page.locator("header.top").is_hidden()
    assert page.locator("#sentence").is_visible()
    assert page.locator("#decision").is_visible()
    assert "report on incident i1, as it was known at" in page.locator(".paper").inner_text()
    page.emulate_media(media="screen")
    assert page.locator(".paper").is_hidden()


def test_ways_that_are_closed_are_printed_though_they_are_folded_on_the_screen(window: Window, site: Api) -> None:
    closed = Option(action="reroute", cost=Cost(), reason="no path planner runs here")
    now_ns = site.parts.clock.now_ns()
    over = {"state": "closed", "closed_ns": now_ns, "closed_because": "it is in time again"}
    save_incidents(site.parts.control, [incident_of("i9", "train", now_ns).model_copy(update=over)], None)
    save_decisions(site.parts.control, [decision_of("d9", "i9", "train", now_ns, alternatives=(closed,))], None)
    page = window.open("/incidents/i9")
    reason = page.get_by_text("no path planner runs here")
    assert not reason.is_visible()
    page.emulate_media(media="print")
    assert reason.is_visible()


@pytest.mark.parametrize("path", PAGES)
def test_page_fits_a_phone(window: Window, path: str) -> None:
    window.page.set_viewport_size({"width": 390, "height": 800})
    page = window.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
