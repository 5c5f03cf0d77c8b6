"""The planner and its controller are as the settings say; a stored policy counts from the next round on."""

from pathlib import Path
from typing import Any, get_args

import pytest

from lockstep.config import Settings
from lockstep.decision import Action
from lockstep.errors import BadInput
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.state.policies import PLANNER, PlannerPolicy, policy_of, save_policy
from planner.assembly import CONTROLLERS, controller_of, make_controller, make_planner, options_of, with_policy
from tests.planner.build import crash, incident, seconds

REACH = {"pid_file": "/run/{job}.pid", "launch": "torchrun train.py &"}
OPTIONS: dict[str, dict[str, Any]] = {
    "command": {"isolate": ["drain", "{node}"], "timeout_s": 5},
    "nvrx": {"directory": "/shared/excluded"},
    "slurm": {"spool": "/var/lib/lockstep/slurm"},
    "torchrun": {"job": "llm", "nodes": ["h1", "h2"], "reach": REACH, "state": "/var/lib/lockstep/torchrun"},
    "webhook": {"url": "http://127.0.0.1:9/hook"},
}


def test_controllers_come_by_name_and_tell_a_cure_in_place_from_a_new_start_of_the_job() -> None:
    assert set(OPTIONS) | {"kubernetes", "in_job"} == set(CONTROLLERS), "every one is tried here, or beside another"
    made = {name: make_controller(name, OPTIONS[name]) for name in OPTIONS}
    assert all(controller.name == name for name, controller in made.items())
    whole = {name: controller.restarts_whole_job for name, controller in made.items()}
    assert whole == {"command": True, "nvrx": False, "slurm": True, "torchrun": False, "webhook": True}
    assert {name for name, each in made.items() if "reattempt" in each.acts} == {"torchrun", "webhook"}
    assert made["command"].acts == {"isolate"}, "there is a command for nothing else"
    assert made["slurm"].acts == {"isolate", "release", "restart"}
    for name in ("command", "webhook"):
        assert not make_controller(name, OPTIONS[name] | {"restarts_whole_job": False}).restarts_whole_job
    for name in ("command", "nvrx", "webhook"):
        dry = make_controller(name, OPTIONS[name] | {"dry_run": True})
        assert dry.isolate("h1", "mark-1", "xid 79").outcome == "would"


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nomad", {}, "there is no controller 'nomad'; there are command, in_job, kubernetes"),
        ("nvrx", {"colour": "red"}, r"controller nvrx .* colour is not known; directory: Field required"),
        ("slurm", OPTIONS["slurm"] | {"rest": "slurm:6820"}, "is no unix:///path and no http://host:port"),
        ("webhook", {"url": "http://h", "secret": "whsec_c2VjcmV0"}, "secret_file"),
        ("webhook", {"url": "http://h", "secret_file": "/none"}, r"cannot be read from /none: No such file"),
        ("kubernetes", {"kubeconfig": "/none"}, "no Kubernetes cluster is configured"),
    ],
)
def test_options_that_make_no_sense_are_bad_input(name: str, options: dict[str, Any], why: str) -> None:
    if name == "kubernetes":
        pytest.importorskip("kubernetes", reason="needs the extra lockstep[kubernetes]")
    with pytest.raises(BadInput, match=why):
        make_controller(name, options)


def test_secret_and_token_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("whsec_c2VjcmV0\n")
    make_controller("webhook", {"url": "http://h", "secret_file": str(tmp_path / "secret")})
    rest = {"rest": "unix:///run/slurmrestd.socket", "rest_token_file": "/etc/lockstep/slurm.token"}
    assert make_controller("slurm", OPTIONS["slurm"] | rest).name == "slurm"


def changed(**changes: object) -> PlannerPolicy:
    return PlannerPolicy.model_validate(policy_of(PlannerSettings()).model_dump() | changes)


def test_policy_that_is_stored_counts_from_the_next_round_on(control: ControlDatabase, lease: Lease) -> None:
    def decided(name: str, planner: Any, at_s: float) -> str:  # Any: a planner of any reader
        save_incidents(control, [incident(crash(job=name), name=name)], None)
        planner.run_once(lease, seconds(at_s))
        return list_decisions(control, incident=name)[0].mode

    planner = make_planner(Settings(), None, control, None)
    assert decided("before", planner, 10) == "observe"
    policy = changed(modes=dict.fromkeys(get_args(Action), "propose"), gpu_hour_price=2.0)
    save_policy(control, PLANNER, policy, after=0, who="ann", why="", now_ns=seconds(10))
    assert decided("after", planner, 11) == "propose"
    assert decided("anew", make_planner(Settings(), None, control, None), 12) == "propose"


def test_policy_changes_its_own_settings_and_no_other() -> None:
    site = Settings(planner=PlannerSettings(nodes_out=9, start_s=33.0, spares=("a",)))
    held = with_policy(site, changed(nodes_out=1, spares=("s1", "s2"), gpu_hour_price=3.0))
    assert (held.planner.nodes_out, held.planner.spares, held.planner.gpu_hour_price) == (1, ("s1", "s2"), 3.0)
    assert (held.planner.start_s, held.api) == (33.0, site.api)
    assert with_policy(site, None) is site


def test_planner_without_telemetry_or_controller_has_nothing_to_do(control: ControlDatabase, lease: Lease) -> None:
    model = {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 4096, "global_batch": 256}
    settings = Settings.model_validate({"planner": {"jobs": {"*": {"model": model}}}})
    assert make_planner(settings, None, control, None).run_once(lease, seconds(10)) == 0


def test_limits_and_times_are_those_of_the_settings_and_execute_needs_a_controller() -> None:
    given = {"restarts_per_hour": 2, "start_s": 30.0, "modes": {"grow": "propose"}}
    options = options_of(Settings.model_validate({"planner": given}))
    assert (options.policy.limits.restarts_per_hour, options.durations.start_s) == (2, 30.0)
    assert (options.policy.mode_of("grow"), options.policy.mode_of("replace")) == ("propose", "observe")
    with pytest.raises(BadInput, match=r"planner\.controller names nobody who would"):
        controller_of(Settings.model_validate({"planner": {"modes": {"grow": "execute"}}}))
