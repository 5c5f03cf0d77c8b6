"""Which controller the settings give."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from planner.assembly import CONTROLLERS, make_controller

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
