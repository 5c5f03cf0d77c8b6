"""deploy/helm: a chart that renders, with every value in use, and of which deploy/kubernetes holds the rendering."""

import re
from pathlib import Path

import pytest
import yaml

from lockstep import __version__
from tests.conftest import REPO
from tests.deploy.chart import DIRECTORY, MANIFEST, chart, default_values, make_pod, objects, render_chart
from tests.deploy.go_template import render

TEMPLATES = "\n".join(file.read_text() for file in sorted((DIRECTORY / "templates").iterdir()))


def test_plain_manifest_is_the_chart_with_its_defaults(update_golden: bool) -> None:
    if update_golden:
        MANIFEST.write_text(render_chart())
    assert MANIFEST.read_text() == render_chart(), "run this test with --update-golden"


def test_chart_and_image_are_of_this_release() -> None:
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


def test_monitor_asks_the_port_that_the_pod_opens_under_the_name_that_the_alerts_know() -> None:
    made = objects(render_chart({"podMonitor": True}))
    labels = made["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    rules = yaml.safe_load((REPO / "deploy/prometheus/lockstep-collector.rules.yml").read_text())
    assert made["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert made["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] == make_pod().container["ports"][0]["name"]
    assert f'up{{job="{labels[made["PodMonitor"]["spec"]["jobLabel"]]}"}}' in str(rules)


def test_namespace_admits_pods_that_see_their_host() -> None:
    namespace = yaml.safe_load(Path(REPO / "deploy/kubernetes/namespace.yaml").read_text())
    assert namespace["metadata"]["name"] == objects(MANIFEST.read_text())["DaemonSet"]["metadata"]["namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
