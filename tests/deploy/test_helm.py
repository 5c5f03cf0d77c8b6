"""deploy/helm: a chart that renders, with every value in use, and of which deploy/kubernetes holds the rendering.

Its DaemonSet starts what exists, with settings that are taken, and has only the rights on its host it needs.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from collector.supervision import REPORT_DIRECTORIES
from lockstep import __version__
from lockstep.sections import split_listen
from tests.conftest import REPO
from tests.deploy.chart import (
    DIRECTORY,
    MANIFEST,
    NODE,
    Pod,
    chart,
    default_values,
    expand,
    make_pod,
    objects,
    render,
    render_chart,
)
from tests.deploy.processes import check_command
from tests.deploy.unit_file import read_unit

TEMPLATES = "\n".join(file.read_text() for file in sorted((DIRECTORY / "templates").iterdir()))


def test_chart_is_of_this_release_and_the_plain_manifest_is_the_chart_with_its_defaults(update_golden: bool) -> None:
    if update_golden:
        MANIFEST.write_text(render_chart())
    assert MANIFEST.read_text() == render_chart(), "run this test with --update-golden"
    assert (chart()["version"], chart()["appVersion"]) == (__version__, __version__)
    assert make_pod().container["image"] == f"lockstep-collector:{__version__}"
    assert f"--tag lockstep-collector:{__version__}" in (REPO / "deploy/Dockerfile").read_text()


def test_every_value_is_used_every_used_value_is_there_and_no_function_of_helms_own() -> None:
    assert set(re.findall(r"\.Values\.(\w+)", TEMPLATES)) == default_values().keys()
    words = {action.split()[0] for action in re.findall(r"\{\{-? *(.*?) *-?\}\}", TEMPLATES)}
    assert {word for word in words if word[0] not in ".$"} == {"if", "else", "end", "range", "printf", "or"}
    with pytest.raises(ValueError, match="not known here"):  # by the engine of these tests
        render("{{ toYaml .x }}", {"x": "1"})


def test_values_reach_the_pod() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    image = {"repository": "registry/collector", "tag": "9.9", "pullPolicy": "Always"}
    place = {"image": image, "nodeSelector": {"pool": "h200"}, "tolerations": [toleration], "runtimeClassName": ""}
    settings = {"LOCKSTEP_COLLECTOR_SOURCES": '["links", "rdma"]'}
    token = {"hostFile": "/etc/lockstep/collector.token"}
    pod = make_pod({"settings": settings, "spoolMb": 77, "bufferMb": 5, "token": token} | place)
    assert pod.settings.collector.sources == ("links", "rdma")
    assert (pod.settings.collector.spool_mb, pod.settings.collector.buffer_mb) == (77, 5)
    assert pod.container["image"] == "registry/collector:9.9"
    assert pod.spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "h200"}
    assert pod.spec["tolerations"] == [toleration]
    assert pod.host_paths[str(pod.settings.collector.token_file)] == "/etc/lockstep/collector.token"
    assert "subPathExpr" not in str(pod.container["volumeMounts"])
    assert "runtimeClassName" not in pod.spec, "nodes without NVIDIA's runtime get none of it"
    assert not any(name.startswith("NVIDIA") for name in pod.environment)


@pytest.mark.parametrize("topology", [{"configMap": "fabric"}, {"hostFile": "/etc/lockstep/topology.json"}], ids=str)
def test_topology_and_key_for_clocks_are_where_the_settings_say(topology: dict[str, str]) -> None:
    settings = {"LOCKSTEP_COLLECTOR_PROBES": True, "LOCKSTEP_COLLECTOR_COMPARE_CLOCKS": "true"}
    pod = make_pod({"topology": topology, "clockKeySecret": "clock-key", "settings": settings})
    mounted = {mount["mountPath"]: mount["name"] for mount in pod.container["volumeMounts"]}
    assert (pod.settings.collector.probes, pod.settings.collector.compare_clocks) == (True, True)
    assert mounted[str(pod.settings.collector.topology)] == "topology"
    assert mounted[str(pod.settings.collector.clock_key_file)] == "clock-key"
    assert set(mounted.values()) == {volume["name"] for volume in pod.spec["volumes"]}


def test_privileged_is_instead_of_everything_that_contradicts_it_and_on_delete_has_no_figures_for_rolling() -> None:
    context = make_pod({"privileged": True}).container["securityContext"]
    assert context == {"runAsUser": 0, "runAsGroup": 0, "readOnlyRootFilesystem": True, "privileged": True}
    made = objects(render_chart({"updateStrategy": "OnDelete"}))["DaemonSet"]
    assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_namespace_admits_the_pod_and_the_monitor_finds_its_port_and_name() -> None:
    namespace = yaml.safe_load(Path(REPO / "deploy/kubernetes/namespace.yaml").read_text())
    assert namespace["metadata"]["name"] == objects(MANIFEST.read_text())["DaemonSet"]["metadata"]["namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    made = objects(render_chart({"podMonitor": True}))
    labels = made["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    rules = yaml.safe_load((REPO / "deploy/prometheus/lockstep-collector.rules.yml").read_text())
    assert made["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert made["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] == make_pod().container["ports"][0]["name"]
    assert f'up{{job="{labels[made["PodMonitor"]["spec"]["jobLabel"]]}"}}' in str(rules)


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


def test_limits_bind_no_cpu_that_training_needs_and_the_kubelet_is_as_patient_as_systemd() -> None:
    host, port = split_listen(POD.settings.collector.listen)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert POD.probe_url(probe) == f"http://{host}:{port}/metrics"
    assert POD.spec["terminationGracePeriodSeconds"] == int(UNIT.only("TimeoutStopSec"))
    limit, requests = POD.container["resources"]["limits"]["memory"], POD.container["resources"]["requests"]
    assert mebibytes(limit) >= 150 + 2 * POD.settings.collector.buffer_mb
    assert mebibytes(limit) == mebibytes(f"{UNIT.only('MemoryMax')}i")
    assert requests == {"cpu": "50m", "memory": "192Mi"}
    strategy = DAEMON_SET["updateStrategy"]["rollingUpdate"]
    assert strategy["maxSurge"] == 0
    assert re.fullmatch(r"[2-9]%|[1-9]\d%", strategy["maxUnavailable"])
    assert POD.spec["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.needs_root
def test_the_first_container_makes_the_directories_as_a_host_has_them(tmp_path: Path) -> None:
    (first,) = POD.spec["initContainers"]
    command = [word.replace("/run/lockstep", str(tmp_path)) for word in first["command"]]
    declared = re.findall(
        r"^d /run/lockstep/(\S+) +(\d+) root", (REPO / "collector/systemd/lockstep.tmpfiles").read_text(), re.M
    )
    subprocess.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command], check=True, umask=0o022)
    made = {str(path.relative_to(tmp_path)): f"{path.stat().st_mode & 0o7777:04o}" for path in tmp_path.rglob("*")}
    assert made == dict(declared)
