"""The helm chart as these tests see it: its values, and the objects that come of them."""

from collections.abc import Mapping
from typing import Any

import yaml

from tests.conftest import REPO
from tests.deploy.go_template import render

DIRECTORY = REPO / "deploy/helm/lockstep-collector"
MANIFEST = REPO / "deploy/kubernetes/collector.yaml"
RELEASE = {"Name": "lockstep-collector", "Namespace": "lockstep"}

Document = dict[str, Any]  # Any: YAML, taken apart by whoever asks

_HEAD = """\
# The collector on every GPU node: deploy/helm/lockstep-collector with its default values, for those without helm.
# Not to be edited here; `pytest tests/deploy/test_helm.py --update-golden` writes it.
"""


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
