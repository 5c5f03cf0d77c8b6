"""The DaemonSet starts what exists, with settings that are taken, and has only the rights on its host it needs."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from lockstep.sections import split_listen
from lockstep.supervision import REPORT_DIRECTORIES
from tests.conftest import REPO
from tests.deploy.chart import MANIFEST, NODE, Pod, expand, objects
from tests.deploy.commands import check_command
from tests.deploy.unit_file import read_unit

DAEMON_SET = objects(MANIFEST.read_text())["DaemonSet"]["spec"]
POD = Pod(DAEMON_SET["template"]["spec"], NODE)
UNIT = read_unit("lockstep-collector.service")


def mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_command_and_settings_are_taken_under_the_name_that_the_plugin_gives_the_host() -> None:
    check_command(POD.container["args"])
    assert "command" not in POD.container, "the image's own, which is lockstep"
    assert POD.settings.collector.host == NODE["spec.nodeName"]
    others = {name for name in POD.environment if not name.startswith("LOCKSTEP_")}
    assert others == {"NODE_IP", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    (trainer,) = yaml.safe_load((REPO / "deploy/inject/kubernetes.yaml").read_text())["spec"]["containers"]
    (theirs,) = [entry["valueFrom"] for entry in trainer["env"] if entry["name"] == "LOCKSTEP_HOST"]
    (ours,) = [entry["valueFrom"] for entry in POD.container["env"] if entry["name"] == "LOCKSTEP_COLLECTOR_HOST"]
    assert ours == theirs


def test_it_sees_the_hosts_processes_and_network_with_the_capabilities_of_the_unit() -> None:
    context = POD.container["securityContext"]
    ours = {f"CAP_{name}" for name in context["capabilities"]["add"]}
    assert ours == set(UNIT.only("AmbientCapabilities").split())
    assert context["capabilities"]["drop"] == ["ALL"]
    assert (context["runAsUser"], context["allowPrivilegeEscalation"]) == (0, False)
    assert context["readOnlyRootFilesystem"] is True
    assert "privileged" not in context
    assert (POD.spec["hostPID"], POD.spec["hostNetwork"]) == (True, True)
    assert POD.spec["dnsPolicy"] == "ClusterFirstWithHostNet", "else names of services are not found"
    assert POD.spec["automountServiceAccountToken"] is False


def test_rings_logs_and_spool_are_the_nodes_and_the_token_its_own() -> None:
    state = str(POD.settings.state_dir)
    assert POD.host_paths == {path: path for path in ("/run/lockstep", "/dev/shm", state)}
    assert all(str(directory).startswith(("/run/lockstep/", "/dev/shm/")) for directory in REPORT_DIRECTORIES)
    assert state == str(UNIT.settings.state_dir), "the spool is found again when a node changes from one to the other"
    (mount,) = [mount for mount in POD.container["volumeMounts"] if mount["name"] == "token"]
    assert mount["mountPath"] == str(POD.settings.collector.token_file)
    assert expand(mount["subPathExpr"], POD.environment) == NODE["spec.nodeName"]
    assert mount["readOnly"]


def test_the_kubelet_asks_where_the_collector_listens_and_stops_it_as_patiently_as_systemd() -> None:
    host, port = split_listen(POD.settings.collector.listen)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert POD.probe_url(probe) == f"http://{host}:{port}/metrics"
    assert POD.spec["terminationGracePeriodSeconds"] == int(UNIT.only("TimeoutStopSec"))


def test_limits_leave_room_for_the_buffer_twice_and_bind_no_cpu_that_training_needs() -> None:
    limit, requests = POD.container["resources"]["limits"]["memory"], POD.container["resources"]["requests"]
    assert mebibytes(limit) >= 150 + 2 * POD.settings.collector.buffer_mb
    assert mebibytes(limit) == mebibytes(f"{UNIT.only('MemoryMax')}i")
    assert requests == {"cpu": "50m", "memory": "192Mi"}


def test_two_agents_never_share_a_node_and_dead_or_tainted_nodes_do_not_stop_a_roll_out() -> None:
    strategy = DAEMON_SET["updateStrategy"]["rollingUpdate"]
    assert strategy["maxSurge"] == 0
    assert re.fullmatch(r"[2-9]%|[1-9]\d%", strategy["maxUnavailable"])
    assert POD.spec["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.needs_root
def test_the_first_container_makes_the_directories_as_a_host_has_them(tmp_path: Path) -> None:
    (first,) = POD.spec["initContainers"]
    command = [word.replace("/run/lockstep", str(tmp_path)) for word in first["command"]]
    declared = re.findall(
        r"^d /run/lockstep/(\S+) +(\d+) root", (REPO / "deploy/inject/lockstep.tmpfiles").read_text(), re.M
    )

    subprocess.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command], check=True, umask=0o022)

    made = {str(path.relative_to(tmp_path)): f"{path.stat().st_mode & 0o7777:04o}" for path in tmp_path.rglob("*")}
    assert made == dict(declared)
