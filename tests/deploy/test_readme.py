"""deploy/README.md names commands, files, extras and ports that exist."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from lockstep import __version__
from lockstep.config import load_settings
from lockstep.sections import split_listen
from tests.conftest import REPO
from tests.deploy.chart import default_values
from tests.deploy.commands import check_command
from tests.deploy.compose_file import load_compose
from tests.deploy.unit_file import read_unit

TEXT = (REPO / "deploy/README.md").read_text()
CODE = re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) + re.findall(r"`([^`\n]+)`", TEXT)
COMPOSE = load_compose()


def command_lines() -> list[str]:
    """Return what is said to `lockstep`, directly and through its image."""
    direct = re.findall(r"(?<![\w/.-])(?:/opt/lockstep/bin/)?lockstep ((?:token|store) [^\n&#]+)", "\n".join(CODE))
    through_image = re.findall(r"docker compose run --rm (\w+) ([^\n&#]+)", "\n".join(CODE))
    return direct + [words for service, words in through_image if COMPOSE.services[service].is_ours]


def test_there_are_commands_to_check() -> None:
    assert len(command_lines()) >= 6


@pytest.mark.parametrize("line", command_lines())
def test_every_command_is_taken(line: str) -> None:
    check_command(shlex.split(line))


def test_every_file_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy/[\w./-]+[\w]|constraints\.txt|docker-compose\.yml)", TEXT))

    assert {name for name in named if not (REPO / name).exists() and not name.startswith("deploy/secrets/")} <= {
        "deploy/secrets"
    }
    assert {name for name in named if name.startswith("deploy/secrets/")} <= set(COMPOSE.secrets.values())


def test_every_extra_is_there() -> None:
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    head, host = re.findall(r"'\.\[([\w,]+)\]'", TEXT)

    assert set(head.split(",")) <= extras.keys()
    assert host == "collector"


def test_every_variable_is_a_setting() -> None:
    named = dict(re.findall(r"\b(LOCKSTEP_\w+)(?:=(\S+))?", TEXT))

    assert load_settings(named, Path("/dev/null")).api.listen == named["LOCKSTEP_API_LISTEN"]


def test_every_service_and_volume_is_there() -> None:
    services = re.findall(r"docker compose (?:exec|cp) (?:-T )?(\w+)(?=[ :])", "\n".join(CODE))

    assert set(services) - {"monday"} <= COMPOSE.services.keys()
    assert all(f"`{volume}`" in TEXT for volume in COMPOSE.volumes)


def test_the_table_of_ports_is_the_truth() -> None:
    settings = COMPOSE.services["api"].settings
    listed = {int(port) for row in re.findall(r"^\| (\d[\d, ]+) \|", TEXT, re.MULTILINE) for port in row.split(", ")}
    published = {port.published for service in COMPOSE.services.values() for port in service.ports}
    parts = (settings.api, settings.analyzer, settings.planner, settings.collector)
    listening = {split_listen(part.listen)[1] for part in parts}

    assert listed == published | listening | {settings.collector.clock_port, 8123, 9000}


def test_every_capability_is_in_the_table_of_what_is_lost() -> None:
    rows = "\n".join(re.findall(r"^\| (`CAP_[^|]+)\|", TEXT, re.MULTILINE))
    granted = read_unit("lockstep-collector.service").only("AmbientCapabilities").split()

    assert sorted(re.findall(r"CAP_\w+", rows)) == sorted(granted)


def test_values_of_the_chart_that_are_set_are_there() -> None:
    named = re.findall(r"--set (\w+)=", TEXT) + re.findall(r"`(token\.hostFile|privileged)\b", TEXT)

    assert {name.partition(".")[0] for name in named} <= default_values().keys()
    assert len(named) >= 3


def test_release_in_the_directory_of_a_host_is_this_one() -> None:
    assert set(re.findall(r"lockstep-(\d+\.\d+\.\d+)", TEXT)) == {__version__}
