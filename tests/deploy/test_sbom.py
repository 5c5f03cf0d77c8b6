"""The bill of materials names everything that is installed for a role, in the versions that are pinned."""

import json
import subprocess
import sys

from packaging.utils import canonicalize_name

from tests.conftest import REPO
from tests.deploy.test_dockerfile import BUILDER

_LINES = (REPO / "constraints.txt").read_text().splitlines()
PINS: dict[str, str] = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in _LINES)}


def make_bill(roles: str) -> dict[str, str]:
    command = [sys.executable, str(REPO / "deploy/sbom.py"), roles]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "lockstep")
    return {each["name"]: each["version"] for each in document["components"]}


def test_bill_has_what_a_role_brings_directly_or_not_and_nothing_of_others() -> None:
    collector, api = make_bill("collector"), make_bill("api")
    assert {"pydantic", "pydantic-core", "pyarrow"} <= collector.keys() & api.keys()
    assert "fastapi" in api.keys() - collector.keys()
    assert "pytest" not in api
    assert {name: version for name, version in (collector | api).items() if PINS.get(name) != version} == {}


def test_build_backend_is_installed_within_the_constraints_too() -> None:
    """The option --constraint does not hold for what builds a wheel; the variable does."""
    assert "PIP_CONSTRAINT=/src/constraints.txt" in BUILDER.all("ENV")
    assert "export PIP_CONSTRAINT := $(CURDIR)/constraints.txt" in (REPO / "Makefile").read_text()
    assert {"hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers"} <= PINS.keys()
