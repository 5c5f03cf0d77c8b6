"""The topology page while a path plan is in force: what was before, what is now, and where the plan leads."""

from collections.abc import Callable, Iterator

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.topology import Topology
from lockstep.verdict import Incident
from planner.paths.service import PathService
from simulator.scenario import parse_scenario
from simulator.simulation import Simulation
from tests.api.build import Api, running_api
from tests.api.views.build import put
from tests.browser.conftest import Window
from tests.browser.test_pages import find_barriers
from tests.builders import SECOND, T0
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import incident
from tests.simulated import JOB, load, tell, told_step
from tests.testbed.clickhouse import ClickHouseServer
from tests.waiting import PunctualClock

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


def test_links_tell_their_load_and_the_dead_one_has_no_connection(
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


SCENARIO = parse_scenario(
    """
    summary = "64 ranks on 8 hosts"
    duration_s = 50

    [cluster]
    hosts = 8
    gpus_per_host = 8
    nics_per_host = 2
    hosts_per_leaf = 4
    spines = 2
    nic_gbps = 200.0

    [job]
    compute_ms = 300.0
    allreduce_mb = [512]
    """,
    "planned",
)
DEAD = "leaf0--spine0"
SECONDS = 48  # of the scenario, after which a person looks
_STEP_S = 0.5


class StandingClock(PunctualClock):
    """A clock on which the scenario is always just over: loads of the last two minutes stay those of the scenario."""

    def now_ns(self) -> int:
        return T0 + SECONDS * SECOND


def planned_topology() -> Topology:
    return Simulation(SCENARIO, 1).topology


def load_planned(store: Store, control: ControlDatabase, topology: Topology) -> None:
    """Tell the scenario, let the planner plan for its flows, break a link, and let it plan again."""
    load(store, tell(SCENARIO, seed=1, every_s=50))
    put(store, (told_step(number, number * _STEP_S, _STEP_S) for number in range(2 * SECONDS)))
    service = PathService(store, control, topology)
    for second in (SECONDS - 2, SECONDS - 1):
        now_ns = T0 + second * SECOND
        lease = hold_lease(control, "paths", ttl_ns=10 * SECOND, now_ns=now_ns)
        assert service.run_once(lease, now_ns) is not None, f"no plan was made in second {second}"
        save_incidents(control, [_dead_link(now_ns)], None)


def _dead_link(now_ns: int) -> Incident:
    known = incident("i1", job=JOB, opened_ns=now_ns, updated_ns=now_ns)
    named = {"component": f"link:{DEAD}", "ambiguous_with": (), "side": None, "fault_class": "comm_hang"}
    times = {"since_ns": now_ns - 5 * SECOND, "last_seen_ns": now_ns}
    messages = {"reason": f"nothing passes {DEAD} any more: 6 transfers stand with it for 5 s"}
    return known.model_copy(update={"verdict": known.verdict.model_copy(update=named | times | messages)})
