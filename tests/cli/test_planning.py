"""The planner is put together as the settings say, and refuses what nobody could carry out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.config import Settings
from lockstep.errors import BadInput
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.leases import take_lease
from planner.assembly import controller_of, make_planner, options_of


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


def settings(**planner: object) -> Settings:
    return Settings(planner=planner)


def test_planner_without_telemetry_or_controller_has_nothing_to_do(control: ControlDatabase) -> None:
    model = {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 4096, "global_batch": 256}
    planner = make_planner(settings(jobs={"*": {"model": model}}), None, control, None)
    lease = take_lease(control, "planner", "p1", ttl_ns=10**13, now_ns=10**18)
    assert lease is not None
    assert planner.run_once(lease, 10**18) == 0


def test_limits_and_times_are_those_of_the_settings() -> None:
    options = options_of(settings(restarts_per_hour=2, start_s=30.0, modes={"grow": "propose"}))
    assert (options.policy.limits.restarts_per_hour, options.durations.start_s) == (2, 30.0)
    assert (options.policy.mode_of("grow"), options.policy.mode_of("replace")) == ("propose", "observe")


def test_execute_without_a_controller_is_refused() -> None:
    with pytest.raises(BadInput, match=r"planner\.controller names nobody who would"):
        controller_of(settings(modes={"grow": "execute"}))
