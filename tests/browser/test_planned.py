"""The topology page while a path plan is in force: what was before, what is now, and where the plan leads."""

from collections.abc import Callable, Iterator

import pytest

from lockstep.state.tokens import Scope
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from tests.api.build import Api, running_api
from tests.browser.conftest import Window
from tests.browser.planned import DEAD, StandingClock, load_planned, planned_topology
from tests.browser.test_pages import find_barriers
from tests.testbed.clickhouse import ClickHouseServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A web process over a fabric whose planner has just led all flows around a dead link."""
    folder = tmp_path_factory.mktemp("planned")
    # The other site of these tests has this process' one embedded store.
    with ClickHouseServer(folder / "clickhouse") as server, open_store(server.url) as store:
        migrate(store, Layout(store.database), now_ns=1)
        topology = planned_topology()
        with running_api(folder, store, clock=StandingClock(), topology=topology) as running:
            load_planned(store, running.parts.control, topology)
            yield running


def test_plan_in_force_is_shown_with_what_it_goes_around(window_of: Callable[[Scope], Window]) -> None:
    page = window_of("read").open("/topology")
    plan = page.locator("section", has=page.get_by_role("heading", name="Path plan", exact=True))
    assert f"It does not count on {DEAD} (0 % of its rate is left)." in plan.inner_text()
    tiles = [tile.inner_text().split("\n")[-1] for tile in plan.locator(".tile").all()]
    assert tiles[:2] == ["fullest link before, in plan 1", "fullest link now, in plan 2"]
    assert [row.locator("th").inner_text() for row in plan.locator("tbody tr").all()] == ["2", "1"]
    assert plan.locator("svg.fabric .cable.line-4").count() > 0, "where all flows have to go now"
    assert plan.locator("svg.fabric .cable.suspect").count() == 1
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert find_barriers(page) == [], theme


def test_links_tell_their_load_and_the_dead_one_has_no_planned_connection(
    window_of: Callable[[Scope], Window],
) -> None:
    page = window_of("read").open("/topology")
    rows = page.locator("section", has=page.get_by_role("heading", name="Links suspects first")).locator("tbody tr")
    dead = rows.filter(has_text=DEAD).inner_text().split("\t")
    assert (dead[0], dead[1], dead[-1]) == (DEAD, "suspect", "\N{EN DASH}")
    around = rows.filter(has_text="leaf0--spine1").inner_text().split("\t")
    assert int(around[-1]) > 0
    assert around[-2].endswith("%"), "what goes over it was counted"


def test_wide_picture_scrolls_by_itself_on_a_phone(window_of: Callable[[Scope], Window]) -> None:
    window = window_of("read")
    window.page.set_viewport_size({"width": 390, "height": 800})
    page = window.open("/topology")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("svg.fabric").first.bounding_box()["width"] > 600  # type: ignore[index] # it is drawn
