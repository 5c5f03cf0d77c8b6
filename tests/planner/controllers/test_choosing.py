"""Which controller the settings give."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from planner.controllers.choosing import CONTROLLERS, make_controller

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
    assert set(OPTIONS) | {"kubernetes"} == set(CONTROLLERS), "every one is tried here"
    made = {name: make_controller(name, OPTIONS[name], dry_run=False) for name in OPTIONS}
    assert all(controller.name == name for name, controller in made.items())
    whole = {name: controller.restarts_whole_job for name, controller in made.items()}
    assert whole == {"command": True, "nvrx": False, "slurm": True, "torchrun": False, "webhook": True}
    for name in ("command", "webhook"):
        reported = OPTIONS[name] | {"restarts_whole_job": False}
        assert not make_controller(name, reported, dry_run=False).restarts_whole_job


def test_slurm_is_reached_through_slurmrestd_by_option() -> None:
    reported = OPTIONS["slurm"] | {
        "rest": "unix:///run/slurmrestd.socket",
        "rest_token_file": "/etc/lockstep/slurm.token",
    }
    assert make_controller("slurm", reported, dry_run=False).name == "slurm"
    with pytest.raises(BadInput, match="is no unix:///path"):
        make_controller("slurm", reported | {"rest": "slurm:6820"}, dry_run=False)


@pytest.mark.parametrize("is_option", [False, True])
def test_dry_run_is_handed_on_and_that_of_the_options_counts(is_option: bool) -> None:
    for name in ("command", "nvrx", "webhook"):
        controller = make_controller(name, OPTIONS[name] | {"dry_run": is_option}, dry_run=not is_option)
        assert controller.isolate("h1", "mark-1", "xid 79").outcome == "would"


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nomad", {}, "there is no controller 'nomad'; there are command, kubernetes"),
        ("nvrx", {"colour": "red"}, r"controller nvrx .* colour is not known; directory: Field required"),
        ("webhook", {"url": "http://h", "secret": "whsec_c2VjcmV0"}, "secret_file"),
    ],
)
def test_options_that_make_no_sense_are_bad_input(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make_controller(name, options, dry_run=False)


def test_secret_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("whsec_c2VjcmV0\n")
    make_controller("webhook", {"url": "http://h", "secret_file": str(tmp_path / "secret")}, dry_run=False)
    with pytest.raises(BadInput, match=r"cannot be read from .*none: No such file"):
        make_controller("webhook", {"url": "http://h", "secret_file": str(tmp_path / "none")}, dry_run=False)


def test_kubernetes_without_a_cluster_is_bad_input(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes", reason="needs the extra lockstep[kubernetes]")
    with pytest.raises(BadInput, match="no Kubernetes cluster is configured"):
        make_controller("kubernetes", {"kubeconfig": str(tmp_path / "none")}, dry_run=False)
