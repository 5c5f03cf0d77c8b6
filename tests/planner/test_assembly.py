"""The planner and its controller are as the settings say; a stored policy counts from the next round on."""

from pathlib import Path
from typing import Any, get_args

import pytest

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Decision
from lockstep.errors import BadInput
from lockstep.sections import JobHints, ModelHint, PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.state.policies import PLANNER, PlannerPolicy, policy_of, save_policy
from planner.assembly import CONTROLLERS, controller_of, make_controller, make_planner, with_policy
from planner.decide import PlannerOptions
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import incident

OPTIONS: dict[str, dict[str, Any]] = {
    "command": {"isolate": ["drain", "{node}"], "timeout_s": 5},
    "nvrx": {"directory": "/shared/excluded"},
    "slurm": {"spool": "/var/lib/lockstep/slurm"},
    "torchrun": {
        "job": "llm",
        "nodes": ["h1", "h2"],
        "reach": {"pid_file": "/run/{job}.pid", "launch": "torchrun train.py &"},
        "state": "/var/lib/lockstep/torchrun",
    },
    "webhook": {"url": "http://127.0.0.1:9/hook"},
}


def test_controllers_come_by_name_and_tell_a_cure_in_place_from_a_new_start_of_the_job() -> None:
    assert set(OPTIONS) | {"kubernetes", "in_job"} == set(CONTROLLERS), "every one is tried here, or beside another"
    made = {name: make_controller(name, OPTIONS[name]) for name in OPTIONS}
    assert all(controller.name == name for name, controller in made.items())
    whole = {name: controller.restarts_whole_job for name, controller in made.items()}
    assert whole == {"command": True, "nvrx": False, "slurm": True, "torchrun": False, "webhook": True}
    in_place = {name for name, controller in made.items() if "reattempt" in controller.acts}
    assert in_place == {"torchrun", "webhook"}
    assert made["command"].acts == {"isolate"}, "there is a command for nothing else"
    assert made["slurm"].acts == {"isolate", "release", "restart"}
    for name in ("command", "webhook"):
        assert not make_controller(name, OPTIONS[name] | {"restarts_whole_job": False}).restarts_whole_job
    for name in ("command", "nvrx", "webhook"):
        controller = make_controller(name, OPTIONS[name] | {"dry_run": True})
        assert controller.isolate("h1", "mark-1", "xid 79").outcome == "would"


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nomad", {}, "there is no controller 'nomad'; there are command, in_job, kubernetes"),
        ("nvrx", {"colour": "red"}, r"controller nvrx .* colour is not known; directory: Field required"),
        ("slurm", OPTIONS["slurm"] | {"rest": "slurm:6820"}, "is no unix:///path and no http://host:port"),
        ("webhook", {"url": "http://h", "secret": "whsec_c2VjcmV0"}, "secret is not known, secret_file is"),
        ("webhook", {"url": "http://h", "secret_file": "/none"}, "cannot read the webhook's secret from /none"),
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


NOW = 1_700_000_000 * NS_PER_S


ACTIONS = get_args(Action)


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
    planner = make_planner(PlannerSettings(), None, control, None)
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
    make_planner(PlannerSettings(), None, control, None).run_once(lease, NOW)
    assert decided(control, "first").mode == "propose"


def test_policy_changes_its_own_settings_and_no_other() -> None:
    site = PlannerSettings(nodes_out=9, start_s=33.0, spares=("a",))
    held = with_policy(site, changed(nodes_out=1, spares=("s1", "s2"), gpu_hour_price=3.0))
    assert (held.nodes_out, held.spares, held.gpu_hour_price) == (1, ("s1", "s2"), 3.0)
    assert held.start_s == 33.0
    assert with_policy(site, None) == site


def test_planner_without_telemetry_or_controller_has_nothing_to_do(control: ControlDatabase) -> None:
    model = {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 4096, "global_batch": 256}
    planner = make_planner(PlannerSettings(jobs={"*": JobHints(model=ModelHint(**model))}), None, control, None)
    lease = hold_lease(control, "planner", "p1", now_ns=10**18)
    assert planner.run_once(lease, 10**18) == 0


def test_modes_and_times_are_those_of_the_settings_and_execute_needs_a_controller() -> None:
    options = PlannerOptions(PlannerSettings(start_s=30.0, modes={"grow": "propose"}))
    assert options.durations.start_s == 30.0
    assert (options.settings.mode_of("grow"), options.settings.mode_of("replace")) == ("propose", "observe")
    with pytest.raises(BadInput, match=r"planner\.controller names nobody who would"):
        controller_of(PlannerSettings(modes={"grow": "execute"}))
