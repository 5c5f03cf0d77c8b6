"""Every page in a real browser works, asks nobody else and is clean for axe; people act, zoom and type."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lockstep.decision import Cost, Option
from lockstep.state.decisions import list_orders, save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope, create_token
from tests.api.build import Api
from tests.api.dashboard.build import decision_of, incident_of
from tests.browser.conftest import PEERS, Window

pytestmark = pytest.mark.slow

_AXE = Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8")
PAGES = ["/", "/incidents", "/incidents/i1", "/topology", "/parts", "/parts?component=nic:h3/eth1"]
PAGES += [f"/{page}?job=train" for page in ("job", "matrix", "lags", "what-if")]
PAGES += ["/scorecard", "/agents", "/settings", "/login"]


def find_barriers(page: Page) -> list[str]:
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


def test_report_prints_what_is_folded_and_not_what_is_only_for_screens(window: Window, site: Api) -> None:
    page = window.open("/incidents/i1")
    assert page.locator("header.top").is_visible()
    page.emulate_media(media="print")
    assert page.locator("header.top").is_hidden()
    assert page.locator("#sentence").is_visible()
    assert page.locator("#decision").is_visible()
    assert "report on incident i1, as it was known at" in page.locator(".paper").inner_text()
    page.emulate_media(media="screen")
    assert page.locator(".paper").is_hidden()
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


def test_new_incident_appears_by_itself(window: Window, site: Api) -> None:
    page = window.open("/")
    expect(page.locator("#open-count")).to_have_text("1")
    told = incident_of("i2", "train", site.parts.clock.now_ns(), component="gpu:h5/3", reason="gpu:h5/3 is late")
    save_incidents(site.parts.control, [told], None)
    expect(page.locator("#open-count")).to_have_text("2")
    expect(page.get_by_role("heading", name="gpu:h5/3")).to_be_visible()
    expect(page.locator("#announcement")).to_have_text("2 open incidents")
    over = {"state": "closed", "closed_ns": told.updated_ns, "closed_because": "it is in time again"}
    save_incidents(site.parts.control, [told.model_copy(update=over)], None)
    expect(page.locator("#open-count")).to_have_text("1")


def test_person_logs_in_and_approves_with_a_reason(window_of: Callable[[Scope], Window], site: Api) -> None:
    window = window_of("read")
    window.page.context.clear_cookies()  # before any page is open: its stream would be refused
    page = window.open("/incidents/i1")
    expect(page).to_have_url(re.compile("/login"))
    now_ns = site.parts.clock.now_ns()
    secret = create_token(site.parts.control, scope="act", host=None, name="grace", now_ns=now_ns, who="test")
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.get_by_label(re.compile("Reason")).fill("the NIC was seen to flap")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#happened")).to_contain_text("the NIC was seen to flap")
    assert [(each.kind, each.who) for each in list_orders(site.parts.control, "d1")] == [("approve", "grace")]


def test_thousand_ranks_are_drawn_and_zoomed(window: Window) -> None:
    page = window.open("/matrix?job=large")
    chart = page.locator("#matrix-chart")
    expect(chart).to_have_attribute("data-drawn", str(1024 * len(PEERS)))
    expect(page.locator("tbody tr").first).to_contain_text("rank 700 (large-h87/4)")
    grid = page.evaluate("echarts.getInstanceByDom(document.querySelector('#matrix-chart')).getOption().grid[0].left")
    assert grid >= 5 * len("1023 · large-h127/7"), "names beside the matrix are whole"
    page.get_by_role("button", name="Zoom to the slowest").click()
    zooms = page.evaluate("echarts.getInstanceByDom(document.querySelector('#matrix-chart')).getOption().dataZoom")
    shown = [zoom["startValue"] for zoom in zooms]
    assert shown == [689, 688, 689, 688]  # twelve before the slow pair, receivers and senders in turn
    page.get_by_role("button", name="Whole matrix").click()


def test_keyboard_leads_everywhere(window: Window) -> None:
    page = window.open("/")
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page).to_have_url(re.compile("/incidents$"))
    page.wait_for_load_state()  # keys are heard once the page has its scripts
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.getAttribute('href')").startswith("/incidents/i")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("no such thing")
    expect(page.locator("article:visible")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_theme_is_remembered_and_the_command_that_tells_the_same_copied(window: Window) -> None:
    page = window.open("/agents")
    assert page.evaluate("document.documentElement.dataset.theme") is None
    page.get_by_role("button", name="Theme").click()
    window.open("/settings")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page = window.open("/matrix?job=train")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="curl").click()
    page.get_by_role("dialog").get_by_role("button", name="Copy").click()
    expect(page.locator("#announcement")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl -sS -H")
    assert copied.endswith("/api/v1/jobs/train/matrix")


def test_strip_of_arrivals_and_sliders_obey_the_keyboard(window: Window) -> None:
    page = window.open("/lags?job=train")
    page.locator("#strip").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#strip-reading")).to_contain_text("rank 3, train-h1/1")
    page = window.open("/what-if?job=train")
    page.locator("input[name=checkpoint_min]").focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile("checkpoint_min=0"))
    expect(page.locator("#age-shown")).to_have_text("0")
