"""The planner is put together as the settings say, and follows a stored policy from its next round on."""

import pytest

from lockstep.clock import NS_PER_S
from lockstep.config import Settings
from lockstep.decision import Decision
from lockstep.errors import BadInput
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.state.policies import PLANNER, PlannerPolicy, policy_of, save_policy
from planner.assembly import controller_of, make_planner, options_of, with_policy
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import incident

NOW = 1_700_000_000 * NS_PER_S
ACTIONS = (
    "none",
    "reroute",
    "reattempt",
    "restart_process",
    "recycle",
    "drop_replica",
    "reconfigure",
    "replace",
    "grow",
)


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return hold_lease(control, "planner", now_ns=NOW)


def changed(**changes: object) -> PlannerPolicy:
    return PlannerPolicy.model_validate(policy_of(PlannerSettings()).model_dump() | changes)


def open_one(control: ControlDatabase, name: str) -> None:
    save_incidents(control, [incident(name, job=name, opened_ns=NOW, updated_ns=NOW)], None)


def decided(control: ControlDatabase, name: str) -> Decision:
    return list_decisions(control, incident=name)[0]


def test_policy_that_is_stored_counts_from_the_next_round_on(control: ControlDatabase, lease: Lease) -> None:
    planner = make_planner(Settings(), None, control, None)
    open_one(control, "before")
    planner.run_once(lease, NOW)
    policy = changed(modes=dict.fromkeys(ACTIONS, "propose"), gpu_hour_price=2.0)
    save_policy(control, PLANNER, policy, after=0, who="ann", why="", now_ns=NOW)
    open_one(control, "after")
    planner.run_once(lease, NOW + NS_PER_S)
    assert (decided(control, "before").mode, decided(control, "after").mode) == ("observe", "propose")


def test_planner_that_starts_anew_reads_the_policy_first(control: ControlDatabase, lease: Lease) -> None:
    policy = changed(modes=dict.fromkeys(ACTIONS, "propose"))
    save_policy(control, PLANNER, policy, after=0, who="ann", why="", now_ns=NOW)
    open_one(control, "first")
    make_planner(Settings(), None, control, None).run_once(lease, NOW)
    assert decided(control, "first").mode == "propose"


def test_policy_changes_its_own_settings_and_no_other() -> None:
    site = Settings(planner=PlannerSettings(nodes_out=9, start_s=33.0, spares=("a",)))
    held = with_policy(site, changed(nodes_out=1, spares=("s1", "s2"), gpu_hour_price=3.0))
    assert (held.planner.nodes_out, held.planner.spares, held.planner.gpu_hour_price) == (1, ("s1", "s2"), 3.0)
    assert (held.planner.start_s, held.api) == (33.0, site.api)
    assert with_policy(site, None) is site


def settings(**planner: object) -> Settings:
    return Settings(planner=planner)


def test_planner_without_telemetry_or_controller_has_nothing_to_do(control: ControlDatabase) -> None:
    model = {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 4096, "global_batch": 256}
    planner = make_planner(settings(jobs={"*": {"model": model}}), None, control, None)
    lease = hold_lease(control, "planner", "p1", now_ns=10**18)
    assert planner.run_once(lease, 10**18) == 0


def test_limits_and_times_are_those_of_the_settings_and_execute_needs_a_controller() -> None:
    options = options_of(settings(restarts_per_hour=2, start_s=30.0, modes={"grow": "propose"}))
    assert (options.policy.limits.restarts_per_hour, options.durations.start_s) == (2, 30.0)
    assert (options.policy.mode_of("grow"), options.policy.mode_of("replace")) == ("propose", "observe")
    with pytest.raises(BadInput, match=r"planner\.controller names nobody who would"):
        controller_of(settings(modes={"grow": "execute"}))
