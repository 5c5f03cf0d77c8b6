"""The bill of materials names everything that is installed for a role, in the versions that are pinned."""

import json
import re
import runpy

import pytest
from packaging.utils import canonicalize_name

from tests.conftest import REPO
from tests.deploy.test_dockerfile import BUILDER

_LINES = (REPO / "constraints.txt").read_text().splitlines()
PINS: dict[str, str] = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in _LINES)}


def make_bill(roles: str) -> dict[str, str]:
    make_document = runpy.run_path(str(REPO / "deploy/sbom.py"))["make_document"]
    document = json.loads(json.dumps(make_document(roles.split(","))))
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "lockstep")
    return {each["name"]: each["version"] for each in document["components"]}


def test_bill_has_what_a_role_brings_directly_or_not_and_nothing_of_others() -> None:
    collector, api = make_bill("collector"), make_bill("api")
    assert {"pydantic", "pydantic-core", "pyarrow"} <= collector.keys() & api.keys()
    assert "fastapi" in api.keys() - collector.keys()
    assert "pytest" not in api
    assert {name: version for name, version in (collector | api).items() if PINS.get(name) != version} == {}


@pytest.mark.parametrize("roles", ["collector", "api,analyzer,planner"])
def test_lock_has_a_hash_for_all_that_its_roles_are_made_of_as_pinned(roles: str) -> None:
    """Where it fails after a change of constraints.txt or of an extra: `make lock`."""
    lock = (REPO / f"deploy/locks/{roles}.txt").read_text()
    locked = dict(re.findall(r"^(\S+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", lock, re.MULTILINE))
    assert locked == make_bill(roles)
    assert len(locked) == lock.count("==")


def test_build_backend_is_installed_within_the_constraints_too() -> None:
    """The option --constraint does not hold for what builds a wheel; the variable does."""
    assert "PIP_CONSTRAINT=/src/constraints.txt" in BUILDER.all("ENV")
    assert "export PIP_CONSTRAINT := $(CURDIR)/constraints.txt" in (REPO / "Makefile").read_text()
    backend = {"hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers"}
    assert backend <= PINS.keys()
    lock = (REPO / "deploy/locks/build.txt").read_text()
    assert all(f"{name}=={PINS[name]} \\\n    --hash=sha256:" in lock for name in backend)
