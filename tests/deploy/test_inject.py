"""How the plugin gets into jobs: by files that run on other people's hosts, so every name in them is checked here."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from lockstep.sections import CollectorSettings

REPO = Path(__file__).resolve().parents[2]
INJECT = REPO / "deploy" / "inject"
PLUGIN_SOURCE = "\n".join(path.read_text() for path in sorted((REPO / "nccl_plugin").glob("*.c")))
SHIM_SOURCE = "\n".join(path.read_text() for path in sorted((REPO / "path_shim").glob("*.[ch]")))
PLAN = "/run/lockstep/paths/plan"


def prolog(tmp_path: Path, **environment: str) -> dict[str, str]:
    plugin = tmp_path / "liblockstep-nccl.so"
    plugin.touch()
    (tmp_path / "liblockstep-paths.so").touch()
    given = {"PATH": os.environ["PATH"], "LOCKSTEP_PLUGIN": str(plugin)} | environment
    done = subprocess.run([INJECT / "slurm-task-prolog"], env=given, capture_output=True, text=True, check=True)
    lines = [re.fullmatch(r"export ([A-Z_]+)=(\S+)", line) for line in done.stdout.splitlines()]
    assert None not in lines, done.stdout
    return {line[1]: line[2] for line in lines if line}


def enroot_environment(name: str = "enroot.env") -> dict[str, str]:
    lines = (INJECT / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def kubernetes_environment(name: str = "kubernetes.yaml") -> dict[str, str | None]:
    (container,) = yaml.safe_load((INJECT / name).read_text())["spec"]["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


def test_prolog_sets_what_the_user_has_not_where_the_plugin_is(tmp_path: Path) -> None:
    said = prolog(tmp_path, SLURMD_NODENAME="gpu-017")
    assert said["NCCL_PROFILER_PLUGIN"] == str(tmp_path / "liblockstep-nccl.so")
    assert said["LOCKSTEP_HOST"] == "gpu-017"
    assert said["NCCL_DEBUG_FILE"].startswith("/run/lockstep/logs/")
    users = prolog(tmp_path, NCCL_PROFILER_PLUGIN="none", NCCL_DEBUG="WARN", LOCKSTEP_RING_DIR="/elsewhere")
    assert set(users) == {"LOCKSTEP_HOST"}
    assert prolog(tmp_path, LOCKSTEP_PLUGIN=str(tmp_path / "missing.so")) == {}


def test_three_ways_set_the_same_variables_which_the_plugin_reads(tmp_path: Path) -> None:
    wanted = set(prolog(tmp_path))
    assert set(enroot_environment()) == wanted
    assert kubernetes_environment().keys() - {"LOCKSTEP_JOB"} == wanted
    for name in ("LOCKSTEP_JOB", "LOCKSTEP_HOST", "LOCKSTEP_RING_DIR"):
        assert f'"{name}"' in PLUGIN_SOURCE


def test_containers_get_the_directories_that_the_host_makes() -> None:
    tmpfiles = (REPO / "collector/systemd/lockstep.tmpfiles").read_text()
    mounts = [line.split() for line in (INJECT / "enroot.fstab").read_text().splitlines() if not line.startswith("#")]
    made = re.findall(r"^d /run/lockstep(\S*)", tmpfiles, re.MULTILINE)
    assert made == ["", "/rings", "/logs", "/paths", "/paths/reports"]
    assert re.search(r"^d /run/lockstep/rings +1777 root root", tmpfiles, re.MULTILINE), "sticky"
    assert {mount[0] for mount in mounts} == {"/usr/lib/lockstep", "/run/lockstep"}
    assert all(source == target for source, target, *_ in mounts)


def test_planned_ports_are_for_jobs_that_ask_where_shim_and_collector_look(tmp_path: Path) -> None:
    plain, asked = prolog(tmp_path), prolog(tmp_path, LOCKSTEP_PATHS_FILE=PLAN)
    shim = str(tmp_path / "liblockstep-paths.so")
    assert {name for name in plain if "PATHS" in name or "PRELOAD" in name} == set()
    assert asked["LD_PRELOAD"] == shim
    assert asked["LOCKSTEP_PATHS_REPORT_DIR"] == "/run/lockstep/paths/reports"
    users = prolog(tmp_path, LOCKSTEP_PATHS_FILE=PLAN, LD_PRELOAD="/lib/mine.so", LOCKSTEP_PATHS_AGENT="@mine")
    assert users["LD_PRELOAD"] == f"/lib/mine.so:{shim}", "behind what the user preloads"
    assert "LOCKSTEP_PATHS_AGENT" not in users
    contained = enroot_environment("enroot-paths.env")
    assert contained == kubernetes_environment("kubernetes-paths.yaml")
    assert contained.keys() == asked.keys() - plain.keys() | {"LOCKSTEP_PATHS_FILE"}
    assert not {"LD_PRELOAD", "LOCKSTEP_PATHS_FILE"} & (enroot_environment().keys() | kubernetes_environment().keys())
    told, collector = enroot_environment("enroot-paths.env"), CollectorSettings()
    assert told.pop("LD_PRELOAD") == "/usr/lib/lockstep/liblockstep-paths.so"
    assert all(f'"{name}"' in SHIM_SOURCE and f'"{place}"' in SHIM_SOURCE for name, place in told.items())
    assert told["LOCKSTEP_PATHS_REPORT_DIR"] == str(collector.paths_reports)
    assert told["LOCKSTEP_PATHS_AGENT"] == collector.paths_agent
