"""What people do: watch an incident appear, say yes to a decision, zoom into a thousand ranks, use the keyboard."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from lockstep.state.decisions import list_orders
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope, create_token
from tests.api.build import Api
from tests.api.dashboard.build import incident_of
from tests.browser.build import PEERS
from tests.browser.conftest import Window

pytestmark = pytest.mark.slow


def test_new_incident_appears_by_itself(window: Window, site: Api) -> None:
    page = window.open("/")
    expect(page.locator("#open-count")).to_have_text("1")
    told = incident_of("i2", "train", site.parts.clock.now_ns(), component="gpu:h5/3", reason="gpu:h5/3 is late")
    save_incidents(site.parts.control, [told], None)
    expect(page.locator("#open-count")).to_have_text("2")
    expect(page.get_by_role("heading", name="gpu:h5/3")).to_be_visible()
    expect(page.locator("#news")).to_have_text("2 open incidents")
    over = {"state": "closed", "closed_ns": told.updated_ns, "closed_because": "it is in time again"}
    save_incidents(site.parts.control, [told.model_copy(update=over)], None)
    expect(page.locator("#open-count")).to_have_text("1")


def test_person_logs_in_and_approves_with_a_reason(window_of: Callable[[Scope], Window], site: Api) -> None:
    window = window_of("read")
    window.page.context.clear_cookies()  # before any page is open: its stream would be refused
    page = window.open("/incidents/i1")
    expect(page).to_have_url(re.compile("/login"))
    secret = create_token(
        site.parts.control, scope="act", host=None, name="grace", now_ns=site.parts.clock.now_ns(), who="test"
    )
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


def test_theme_is_switched_and_remembered(window: Window) -> None:
    page = window.open("/agents")
    assert page.evaluate("document.documentElement.dataset.theme") is None
    page.get_by_role("button", name="Theme").click()
    window.open("/settings")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_command_that_tells_the_same_can_be_copied(window: Window) -> None:
    page = window.open("/matrix?job=train")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="curl").click()
    page.get_by_role("dialog").get_by_role("button", name="Copy").click()
    expect(page.locator("#news")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl -sS -H")
    assert copied.endswith("/api/v1/jobs/train/matrix")


def test_strip_of_arrivals_can_be_read_by_keyboard(window: Window) -> None:
    page = window.open("/lags?job=train")
    page.locator("#strip").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#strip-reading")).to_contain_text("rank 3, train-h1/1")


def test_slider_asks_the_planner_again(window: Window) -> None:
    page = window.open("/what-if?job=train")
    page.locator("input[name=checkpoint_min]").focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile("checkpoint_min=0"))
    expect(page.locator("#age-shown")).to_have_text("0")
