"""The helm chart as these tests see it: its values, and the objects that come of them.

Helm is not needed: what our chart uses of Go's templates is told in Jinja's, and the rest refused. A dash trims white
space in both.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, Undefined

from lockstep.config import Settings, load_settings
from tests.conftest import REPO

_VALUE = r"([.$][\w.]+)"
_BLOCKS = [
    (rf"(if) {_VALUE}", r"if \2"),
    (rf"(if) or {_VALUE} {_VALUE}", r"if \2 or \3"),
    (rf'(if) eq {_VALUE} ("[^"]*")', r"if \2 == \3"),
    (rf"(range) (\$\w+) := {_VALUE}", r"for \2 in \3 or ()"),
    (rf"(range) (\$\w+), (\$\w+) := {_VALUE}", r"for \2, \3 in (\4 or {})|dictsort"),
]
_SHOWN = [
    (_VALUE, r"\1"),
    (rf"or {_VALUE} {_VALUE}", r"\1 or \2"),
    (rf'printf "%q" \(print {_VALUE}\)', r"\1 | quoted"),
]


def render(template: str, dot: Mapping[str, Any]) -> str:
    """Return what Go's engine would; ValueError for what this one does not know."""
    engine = Environment(keep_trailing_newline=True, finalize=_show, autoescape=False)
    engine.filters["quoted"] = lambda value: json.dumps(_show(value))  # as Go does it, for plain characters
    ends: list[str] = []

    def translate(action: "re.Match[str]") -> str:
        left, text, right = action.groups()
        if text in ("else", "end"):
            return f"{{%{left} {text if text == 'else' else ends.pop()} {right}%}}"
        for pattern, told in _BLOCKS:
            if block := re.fullmatch(pattern, text):
                ends.append({"if": "endif", "range": "endfor"}[block[1]])
                return f"{{%{left} {_named(block.expand(told))} {right}%}}"
        for pattern, told in _SHOWN:
            if shown := re.fullmatch(pattern, text):
                return f"{{{{{left} {_named(shown.expand(told))} {right}}}}}"
        raise ValueError(f"not known here: {text!r}")

    return engine.from_string(re.sub(r"\{\{(-?) *(.*?) *(-?)\}\}", translate, template)).render(dot)


def _named(expression: str) -> str:
    return re.sub(r"(?<!\w)[.$](?=\w)", "", expression)


def _show(value: Any) -> str:
    if value is None or isinstance(value, Undefined | Mapping | list):
        raise ValueError(f"{value!r} would be printed")
    return str(value).lower() if isinstance(value, bool) else str(value)


DIRECTORY = REPO / "deploy/helm/lockstep-collector"
MANIFEST = REPO / "deploy/kubernetes/collector.yaml"
RELEASE = {"Name": "lockstep-collector", "Namespace": "lockstep"}

Document = dict[str, Any]  # Any: YAML, taken apart by whoever asks

_HEAD = """\
# The collector on every GPU node: deploy/helm/lockstep-collector with its default values, for those without helm.
# Not to be edited here; `pytest tests/deploy/test_helm.py --update-golden` writes it.
"""
NODE = {"spec.nodeName": "gpu-017", "status.hostIP": "10.0.0.17"}  # what the downward API would say


def chart() -> Document:
    found: Document = yaml.safe_load((DIRECTORY / "Chart.yaml").read_text())
    return found


def default_values() -> Document:
    found: Document = yaml.safe_load((DIRECTORY / "values.yaml").read_text())
    return found


def render_chart(changes: Mapping[str, Any] | None = None) -> str:
    described = chart()
    dot = {
        "Values": default_values() | dict(changes or {}),
        "Release": RELEASE,
        "Chart": {"Name": described["name"], "Version": described["version"], "AppVersion": described["appVersion"]},
    }
    texts = [render(file.read_text(), dot) for file in sorted((DIRECTORY / "templates").iterdir(), reverse=True)]
    return _HEAD + "---\n".join(text for text in texts if text.strip())


def objects(text: str) -> dict[str, Document]:
    found = [document for document in yaml.safe_load_all(text) if document]
    return {document["kind"]: document for document in found}


@dataclass(frozen=True)
class Pod:
    spec: Document
    node: Mapping[str, str]

    @property
    def container(self) -> Document:
        (container,) = self.spec["containers"]
        found: Document = container
        return found

    @property
    def environment(self) -> dict[str, str]:
        """What the process is given; `$(NAME)` is a variable that was named before."""
        found: dict[str, str] = {}
        for entry in self.container["env"]:
            source = entry.get("valueFrom")
            value = self.node[source["fieldRef"]["fieldPath"]] if source else entry["value"]
            found[entry["name"]] = expand(value, found)
        return found

    @property
    def settings(self) -> Settings:
        """What Lockstep makes of the environment and nothing else; unknown variables raise."""
        return load_settings(self.environment, Path("/dev/null"))

    @property
    def host_paths(self) -> dict[str, str]:
        volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in self.spec["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in self.container["volumeMounts"]}
        return {inside: path for inside, path in mounts.items() if path}

    def probe_url(self, name: str) -> str:
        """Return what the kubelet asks; without a host in the probe that is the pod's address, here the node's."""
        request = self.container[name]["httpGet"]
        (port,) = [port["containerPort"] for port in self.container["ports"] if port["name"] == request["port"]]
        return f"http://{self.node['status.hostIP']}:{port}{request['path']}"


def make_pod(changes: Mapping[str, Any] | None = None, node: Mapping[str, str] = NODE) -> Pod:
    """Return the pod of the chart; `changes` replaces values of the first level."""
    return Pod(objects(render_chart(changes))["DaemonSet"]["spec"]["template"]["spec"], node)


def expand(text: str, known: Mapping[str, str]) -> str:
    """Return the text with `$(NAME)` replaced; a name that is not known stays, as the kubelet leaves it."""
    return re.sub(r"\$\((\w+)\)", lambda match: known.get(match[1], match[0]), text)
