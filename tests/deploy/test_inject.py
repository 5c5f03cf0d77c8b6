"""How the plugin gets into jobs: by files that run on other people's hosts, so every name in them is checked here."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
INJECT = REPO / "deploy" / "inject"
PLUGIN_SOURCE = "\n".join(path.read_text() for path in sorted((REPO / "nccl_plugin").glob("*.c")))


def prolog(tmp_path: Path, **environment: str) -> dict[str, str]:
    plugin = tmp_path / "liblockstep-nccl.so"
    plugin.touch()
    given = {"PATH": os.environ["PATH"], "LOCKSTEP_PLUGIN": str(plugin)} | environment
    done = subprocess.run([INJECT / "slurm-task-prolog"], env=given, capture_output=True, text=True, check=True)
    lines = [re.fullmatch(r"export ([A-Z_]+)=(\S+)", line) for line in done.stdout.splitlines()]
    assert None not in lines, done.stdout
    return {line[1]: line[2] for line in lines if line}


def enroot_environment() -> dict[str, str]:
    lines = (INJECT / "enroot.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def kubernetes_container() -> dict[str, object]:
    (container,) = yaml.safe_load((INJECT / "kubernetes.yaml").read_text())["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def kubernetes_names() -> set[str]:
    variables = kubernetes_container()["env"]
    assert isinstance(variables, list)
    return {one["name"] for one in variables}


def test_prolog_sets_the_plugin_the_ring_directory_and_the_log(tmp_path: Path) -> None:
    said = prolog(tmp_path, SLURMD_NODENAME="gpu-017")

    assert said["NCCL_PROFILER_PLUGIN"] == str(tmp_path / "liblockstep-nccl.so")
    assert said["LOCKSTEP_HOST"] == "gpu-017"
    assert said["NCCL_DEBUG_FILE"].startswith("/run/lockstep/logs/")


def test_prolog_leaves_what_the_user_has_set(tmp_path: Path) -> None:
    said = prolog(tmp_path, NCCL_PROFILER_PLUGIN="none", NCCL_DEBUG="WARN", LOCKSTEP_RING_DIR="/elsewhere")

    assert set(said) == {"LOCKSTEP_HOST"}


def test_prolog_changes_nothing_on_a_host_without_the_plugin(tmp_path: Path) -> None:
    assert prolog(tmp_path, LOCKSTEP_PLUGIN=str(tmp_path / "missing.so")) == {}


def test_three_ways_set_the_same_variables(tmp_path: Path) -> None:
    wanted = set(prolog(tmp_path))

    assert set(enroot_environment()) == wanted
    assert kubernetes_names() - {"LOCKSTEP_JOB"} == wanted


@pytest.mark.parametrize("name", sorted({"LOCKSTEP_JOB", "LOCKSTEP_HOST", "LOCKSTEP_RING_DIR"}))
def test_variables_of_ours_are_read_by_the_plugin(name: str) -> None:
    assert f'"{name}"' in PLUGIN_SOURCE


def test_containers_get_the_directories_that_the_host_makes() -> None:
    made = re.findall(r"^d (\S+)", (INJECT / "lockstep.tmpfiles").read_text(), re.MULTILINE)
    mounts = [line.split() for line in (INJECT / "enroot.fstab").read_text().splitlines() if not line.startswith("#")]

    assert made == ["/run/lockstep", "/run/lockstep/rings", "/run/lockstep/logs"]
    assert {mount[0] for mount in mounts} == {"/usr/lib/lockstep", "/run/lockstep"}
    assert all(source == target for source, target, *_ in mounts)


def test_ring_directory_is_sticky_and_roots() -> None:
    assert "d /run/lockstep/rings 1777 root root" in (INJECT / "lockstep.tmpfiles").read_text()
