"""deploy/Dockerfile builds here, as a user who owns nothing else, from what locks and the bill of materials name."""

import json
import re
import runpy
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from cli.main import COMMANDS
from tests.conftest import REPO
from tests.deploy.compose_file import load_compose

DOCKERFILE = REPO / "deploy/Dockerfile"
PROJECT: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text())  # Any: TOML


@dataclass(frozen=True)
class Stage:
    image: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        (rest,) = self.all(instruction)
        return rest


def read_stages() -> list[Stage]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps = [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]
    starts = [index for index, (name, _) in enumerate(steps) if name == "FROM"]
    places = zip(starts, [*starts[1:], len(steps)], strict=True)
    return [Stage(steps[begin][1].split()[0], tuple(steps[begin + 1 : end])) for begin, end in places]


BUILDER, RUNTIME = read_stages()


COPIED = {word for step in BUILDER.all("COPY") for word in step.split()[:-1]}


def test_services_run_lockstep_as_a_user_with_a_fixed_id_who_owns_the_directory_of_the_volume() -> None:
    user, _, group = RUNTIME.only("USER").partition(":")
    (makes_user,) = RUNTIME.all("RUN")
    owned = re.findall(r"install --directory --owner=10001 [^/]*/(\S+)", makes_user)
    assert user == group == "10001"
    assert f"useradd --uid {user} --gid {group} " in makes_user
    assert {f"/{path}" for path in owned} == {mount.target for s in load_compose().ours for mount in s.mounts}
    assert json.loads(RUNTIME.only("ENTRYPOINT")) == [*PROJECT["project"]["scripts"]] == ["lockstep"]
    assert RUNTIME.only("STOPSIGNAL") == "SIGTERM"
    assert RUNTIME.all("HEALTHCHECK") == [], "each service has its own, in the compose file"
    assert {service.dockerfile for service in load_compose().ours} == {str(DOCKERFILE.relative_to(REPO))}


def test_packages_are_installed_as_constrained_in_the_builder_only_from_no_index_in_particular() -> None:
    locked, install = (step for step in BUILDER.all("RUN") if "pip install" in step)
    assert "--constraint constraints.txt" in install
    (role,) = (arg.partition("=")[2] for arg in BUILDER.all("ARG") if arg.startswith("ROLE="))
    assert (REPO / f"deploy/locks/{role}.txt").exists()
    checked = r"--require-hashes --only-binary :all: [^;]*--requirement"
    assert all(re.search(rf'{checked} "?locks/{lock}.txt', locked) for lock in ("build", r"\$ROLE"))
    assert "constraints.txt" in BUILDER.all("COPY")[0].split()
    assert not any("pip" in step or "apt" in step for step in RUNTIME.all("RUN"))
    assert "EXTRA_INDEX_URL" in BUILDER.all("ARG")
    assert "://" not in DOCKERFILE.read_text()


def test_the_environment_is_of_its_role_and_used_where_and_by_the_python_that_made_it() -> None:
    assert RUNTIME.only("COPY").split() == ["--from=builder", "/opt/lockstep", "/opt/lockstep"]
    assert "python -m venv /opt/lockstep" in BUILDER.all("RUN")
    assert "PATH=/opt/lockstep/bin:$PATH" in RUNTIME.only("ENV")
    assert BUILDER.image == RUNTIME.image
    tag = re.fullmatch(r"python:(\d+\.\d+)-slim-[a-z]+", RUNTIME.image)
    assert tag
    assert tag[1] in SpecifierSet(PROJECT["project"]["requires-python"])
    (role,) = [arg.partition("=")[2] for arg in BUILDER.all("ARG") if arg.startswith("ROLE=")]
    needed = next(command.extra for command in COMMANDS if command.name == "serve")
    assert set(role.split(",")) == set(needed.split(","))
    assert set(role.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


def test_the_builder_is_sent_and_copies_what_the_wheel_needs_and_nothing_else() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    read = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    patterns = [line for line in (REPO / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert {*packages, *read, "constraints.txt", "deploy/locks"} == COPIED
    assert all((REPO / name).exists() for name in COPIED)
    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern[0] == "!"} == COPIED
    assert patterns[-2:] == ["**/__pycache__", "**/*.py[cod]"], "the last word counts"


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
