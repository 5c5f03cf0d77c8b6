"""The helm chart as these tests see it: its values, and the objects that come of them.

Helm is not needed: of Go's template language we know what our chart uses, and refuse the rest. Values: `.a.b`,
`$name.b`, `or A B`, `eq A "text"`, `printf "%q" (print A)`; blocks: `if`, `else`, `range $key, $value := A`,
`range $value := A`, `end`; a dash trims white space on its side.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lockstep.config import Settings, load_settings
from tests.conftest import REPO

Scope = Mapping[str, Any]  # Any: values of a chart; "" is the dot, the others are variables

_ACTION = re.compile(r"(\s*)\{\{(-?) *(.*?) *(-?)\}\}(\s*)", re.DOTALL)
_PATH = re.compile(r"(\$\w+|)((?:\.\w+)*)")
_RANGE = re.compile(r"range (?:\$(\w+), )?\$(\w+) := (\S+)")
_QUOTED = re.compile(r'printf "%q" \(print (\S+)\)')
_EQUAL = re.compile(r'eq (\S+) "([^"]*)"')


@dataclass(frozen=True)
class _Piece:
    text: str
    is_action: bool


def render(template: str, dot: Mapping[str, Any]) -> str:
    """Return what Go's engine would; ValueError for what this one does not know."""
    return _render(list(_split(template)), {"": dot})


def _split(template: str) -> Iterator[_Piece]:
    at = 0
    while match := _ACTION.search(template, at):
        before, left, action, right, after = match.groups()
        yield _Piece(template[at : match.start()] + ("" if left else before), False)
        yield _Piece(action, True)
        at = match.end() if right else match.end() - len(after)  # the next action may want to trim it
    yield _Piece(template[at:], False)


def _render(pieces: Sequence[_Piece], scope: Scope) -> str:
    out: list[str] = []
    rest = iter(pieces)
    for piece in rest:
        if not piece.is_action:
            out.append(piece.text)
        elif piece.text.startswith("if "):
            body, otherwise = _take_block(rest, piece.text)
            out.append(_render(body if _evaluate(piece.text[3:], scope) else otherwise, scope))
        elif piece.text.startswith("range "):
            body, _ = _take_block(rest, piece.text)
            out += [_render(body, inner) for inner in _turns(piece.text, scope)]
        else:
            out.append(_show(_evaluate(piece.text, scope)))
    return "".join(out)


def _take_block(rest: Iterator[_Piece], what: str) -> tuple[list[_Piece], list[_Piece]]:
    """Return what stands before and behind the `else` that belongs to a block, up to its end."""
    branches: tuple[list[_Piece], list[_Piece]] = ([], [])
    depth, branch = 1, 0
    for piece in rest:
        if piece.is_action:
            depth += piece.text.startswith(("if ", "range ")) - (piece.text == "end")
        if depth == 0:
            return branches
        if piece.is_action and piece.text == "else" and depth == 1:
            branch = 1
        else:
            branches[branch].append(piece)
    raise ValueError(f"{what!r} has no end")


def _turns(action: str, scope: Scope) -> Iterator[Scope]:
    """Return what is known in each turn of a `range`; maps come in the order of their keys."""
    parts = _RANGE.fullmatch(action)
    if not parts:
        raise ValueError(f"not known here: {action!r}")
    found = _look_up(parts[3], scope) or {}
    for key, value in sorted(found.items()) if isinstance(found, Mapping) else enumerate(found):
        yield {**scope, **({parts[1]: key} if parts[1] else {}), parts[2]: value}


def _evaluate(expression: str, scope: Scope) -> Any:
    if quoted := _QUOTED.fullmatch(expression):
        return json.dumps(_show(_look_up(quoted[1], scope)))  # as Go does it, for plain characters
    if equal := _EQUAL.fullmatch(expression):
        return _look_up(equal[1], scope) == equal[2]
    if expression.startswith("or "):
        first, second = expression.split()[1:]
        return _look_up(first, scope) or _look_up(second, scope)
    return _look_up(expression, scope)


def _look_up(path: str, scope: Scope) -> Any:
    parts = _PATH.fullmatch(path)
    if not parts or not path:
        raise ValueError(f"not known here: {path!r}")
    found = scope[parts[1].removeprefix("$")]
    for key in parts[2].split(".")[1:]:
        found = found.get(key)
    return found


def _show(value: Any) -> str:
    if value is None or isinstance(value, Mapping | list):
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
    """Return all objects as text; `changes` replaces values of the first level."""
    described = chart()
    dot = {
        "Values": default_values() | dict(changes or {}),
        "Release": RELEASE,
        "Chart": {"Name": described["name"], "Version": described["version"], "AppVersion": described["appVersion"]},
    }
    texts = [render(file.read_text(), dot) for file in sorted((DIRECTORY / "templates").iterdir(), reverse=True)]
    return _HEAD + "---\n".join(text for text in texts if text.strip())


def objects(text: str) -> dict[str, Document]:
    """Return the objects by their kind."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return {document["kind"]: document for document in found}


@dataclass(frozen=True)
class Pod:
    """One pod, of a chart with the given values."""

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
        """Return path in the container -> path on the node."""
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
