"""deploy/Dockerfile builds from this repository, with pinned packages, and ends as a user who owns nothing else."""

import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from cli.main import COMMANDS
from tests.conftest import REPO
from tests.deploy.compose_file import load_compose

DOCKERFILE = REPO / "deploy/Dockerfile"
PROJECT: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text())  # Any: TOML
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it."""

    image: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]

    def only(self, instruction: str) -> str:
        (rest,) = self.all(instruction)
        return rest


def read_stages() -> list[Stage]:
    """Return the stages of the Dockerfile, continued lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps = [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]
    starts = [index for index, (name, _) in enumerate(steps) if name == "FROM"]
    return [
        Stage(steps[begin][1].split()[0], tuple(steps[begin + 1 : end]))
        for begin, end in zip(starts, [*starts[1:], len(steps)], strict=True)
    ]


BUILDER, RUNTIME = read_stages()


def test_services_run_as_a_user_with_a_fixed_id_who_is_not_root() -> None:
    user, _, group = RUNTIME.only("USER").partition(":")
    (makes_user,) = RUNTIME.all("RUN")

    assert user == group == "10001"
    assert f"useradd --uid {user} --gid {group} " in makes_user


def test_the_user_owns_the_directory_that_the_volume_is_mounted_on() -> None:
    (makes_user,) = RUNTIME.all("RUN")
    mounted = {mount.target for service in load_compose().ours for mount in service.mounts}

    assert [f"/{path}" for path in re.findall(r"install --directory --owner=10001 [^/]*/(\S+)", makes_user)] == [
        *mounted
    ]


def test_the_command_is_lockstep_and_docker_stops_it_as_it_likes() -> None:
    assert json.loads(RUNTIME.only("ENTRYPOINT")) == [*PROJECT["project"]["scripts"]] == ["lockstep"]
    assert RUNTIME.only("STOPSIGNAL") == "SIGTERM"
    assert RUNTIME.all("HEALTHCHECK") == [], "each service has its own, in the compose file"


def test_packages_are_installed_as_constrained_and_in_the_builder_only() -> None:
    (install,) = [step for step in BUILDER.all("RUN") if "pip install" in step]

    assert "--constraint constraints.txt" in install
    assert "constraints.txt" in BUILDER.all("COPY")[0].split()
    assert not any("pip" in step or "apt" in step for step in RUNTIME.all("RUN"))


def test_the_environment_is_used_where_it_was_made_by_the_python_that_made_it() -> None:
    copied = RUNTIME.only("COPY").split()

    assert copied == ["--from=builder", "/opt/lockstep", "/opt/lockstep"]
    assert "python -m venv /opt/lockstep" in BUILDER.all("RUN")
    assert "PATH=/opt/lockstep/bin:$PATH" in RUNTIME.only("ENV")
    assert BUILDER.image == RUNTIME.image


def test_the_base_is_pinned_slim_and_new_enough() -> None:
    tag = re.fullmatch(r"python:(\d+\.\d+)-slim-[a-z]+", RUNTIME.image)

    assert tag
    assert tag[1] in SpecifierSet(PROJECT["project"]["requires-python"])


def test_the_role_is_what_serve_needs() -> None:
    (role,) = [arg.partition("=")[2] for arg in BUILDER.all("ARG") if arg.startswith("ROLE=")]
    needed = next(command.extra for command in COMMANDS if command.name == "serve")

    assert set(role.split(",")) == set(needed.split(","))
    assert set(role.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


def test_no_package_index_is_named() -> None:
    assert "EXTRA_INDEX_URL" in BUILDER.all("ARG")
    assert "://" not in DOCKERFILE.read_text()


def test_every_package_of_the_wheel_and_what_its_build_reads_is_copied() -> None:
    copied = {word for step in BUILDER.all("COPY") for word in step.split()[:-1]}
    read = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}

    assert copied == {*PACKAGES, *read, "constraints.txt"}
    assert all((REPO / name).exists() for name in copied)


def test_the_builder_is_sent_what_it_copies_and_nothing_else() -> None:
    copied = {word for step in BUILDER.all("COPY") for word in step.split()[:-1]}
    patterns = [line for line in (REPO / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]

    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern[0] == "!"} == copied
    assert patterns[-2:] == ["**/__pycache__", "**/*.py[cod]"], "the last word counts"


def test_compose_builds_with_this_file() -> None:
    assert {service.dockerfile for service in load_compose().ours} == {str(DOCKERFILE.relative_to(REPO))}
