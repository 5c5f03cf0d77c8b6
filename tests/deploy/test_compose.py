"""docker-compose.yml agrees with itself, with the code and with the files it mounts."""

import re
from itertools import chain
from urllib.parse import urlsplit

import pytest

from api.routes.health import health_app
from lockstep import __version__
from lockstep.sections import split_listen
from tests.conftest import REPO
from tests.deploy.commands import check_command
from tests.deploy.compose_file import Service, load_compose

COMPOSE = load_compose()
OURS = [pytest.param(service, id=service.name) for service in COMPOSE.ours]
ALL = [pytest.param(service, id=name) for name, service in COMPOSE.services.items()]
SERVING = [pytest.param(service, id=service.name) for service in COMPOSE.ours if service.command[0] == "serve"]


@pytest.mark.parametrize("service", OURS)
def test_each_of_our_services_runs_a_command_that_exists(service: Service) -> None:
    check_command(service.command)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="there is no 'oracle'"):
        check_command(["serve", "oracle"])


def test_every_service_of_the_serve_command_is_there() -> None:
    assert {service.command[1] for service in COMPOSE.ours if service.command[0] == "serve"} == {
        "api",
        "analyzer",
        "planner",
    }


@pytest.mark.parametrize("service", OURS)
def test_our_settings_are_taken(service: Service) -> None:
    assert all(name.startswith("LOCKSTEP_") for name in service.environment), "a variable that nobody reads"
    assert service.settings.log_level == "info"  # an unknown variable or a bad value would have raised


@pytest.mark.parametrize("service", ALL)
def test_every_path_in_an_environment_is_mounted(service: Service) -> None:
    inside = {mount.target for mount in service.mounts} | service.secrets.keys() | set(service.tmpfs)
    named = {value for value in service.environment.values() if value.startswith("/")}

    assert named <= inside


@pytest.mark.parametrize("service", ALL)
def test_what_a_service_mounts_from_the_repository_is_there_and_stays_as_it_is(service: Service) -> None:
    for mount in service.mounts:
        if not mount.is_volume:
            assert (REPO / mount.source).exists(), mount.source
            assert mount.read_only, f"{mount.source} could be changed from inside the container"


def test_volumes_networks_and_secrets_are_declared_and_used() -> None:
    services = COMPOSE.services.values()

    assert {mount.source for s in services for mount in s.mounts if mount.is_volume} == COMPOSE.volumes
    assert set(chain.from_iterable(s.networks for s in services)) == COMPOSE.networks
    assert set(chain.from_iterable(s.secrets.values() for s in services)) == COMPOSE.secrets.keys()


def test_secrets_are_where_git_does_not_look() -> None:
    assert {file.rpartition("/")[0] for file in COMPOSE.secrets.values()} == {"deploy/secrets"}
    assert "deploy/secrets/" in (REPO / ".gitignore").read_text().splitlines()


def test_the_store_is_healthy_before_the_migration_and_the_migration_done_before_the_services() -> None:
    order = [service.name for service in COMPOSE.start_order()]

    assert order[:2] == ["clickhouse", "migrate"]
    assert COMPOSE.services["migrate"].conditions == {"clickhouse": "service_healthy"}
    for name in order[2:]:
        assert COMPOSE.services[name].conditions == {
            "clickhouse": "service_healthy",
            "migrate": "service_completed_successfully",
        }


def test_what_others_wait_for_can_come_true() -> None:
    for service in COMPOSE.services.values():
        for name, condition in service.conditions.items():
            other = COMPOSE.services[name]
            if condition == "service_healthy":
                assert other.health, f"{name} has no health check to pass"
            else:
                assert other.restart is None, f"{name} is started again whenever it completes"


@pytest.mark.parametrize("service", SERVING)
def test_a_service_comes_back_after_a_crash(service: Service) -> None:
    assert service.restart == "unless-stopped"


@pytest.mark.parametrize("service", ALL)
def test_images_are_pinned_and_come_from_no_registry_in_particular(service: Service) -> None:
    assert re.fullmatch(r"[a-z]+(/[a-z-]+)?:\d+\.\d+(\.\d+)*", service.image)


@pytest.mark.parametrize("service", OURS)
def test_our_image_carries_our_version(service: Service) -> None:
    assert service.image == f"lockstep:{__version__}"


def test_the_server_is_of_the_line_that_the_tests_run_on() -> None:
    pinned = re.search(r"^chdb-core==(\d+\.\d+)\.", (REPO / "constraints.txt").read_text(), re.MULTILINE)

    assert pinned
    assert COMPOSE.services["clickhouse"].image == f"clickhouse/clickhouse-server:{pinned[1]}"


@pytest.mark.parametrize("service", ALL)
def test_memory_is_limited(service: Service) -> None:
    assert re.fullmatch(r"\d+[mg]", service.mem_limit or "none")


@pytest.mark.parametrize("service", OURS)
def test_our_services_write_only_where_they_are_told(service: Service) -> None:
    assert service.read_only
    assert service.tmpfs == ("/tmp",)
    if service.command[0] == "serve":
        assert str(service.settings.state_dir) in {mount.target for mount in service.mounts}


def test_the_services_share_one_control_database() -> None:
    serving = [service for service in COMPOSE.ours if service.command[0] == "serve"]

    assert len({service.settings.control_url for service in serving}) == 1
    assert len({mount.source for service in serving for mount in service.mounts}) == 1


@pytest.mark.parametrize("service", ALL)
def test_ports_are_published_on_loopback_only(service: Service) -> None:
    assert {port.address for port in service.ports} <= {"127.0.0.1"}


def test_the_api_is_published_where_clients_look_for_it() -> None:
    api = COMPOSE.services["api"]
    host, port = split_listen(api.settings.api.listen)
    (published,) = api.ports

    assert published.target == port
    assert host == "0.0.0.0", "on loopback of the container nobody outside would reach it"
    assert api.settings.collector.server == f"http://{published.address}:{published.published}"
    assert "default" in api.networks, "an internal network publishes nothing"


@pytest.mark.parametrize("service", SERVING)
def test_the_health_check_asks_a_path_that_exists_on_the_port_that_is_served(service: Service) -> None:
    (url,) = re.findall(r"http://[^']+", " ".join(service.health))
    section = getattr(service.settings, service.command[1])

    assert urlsplit(url).port == split_listen(section.listen)[1]
    assert urlsplit(url).path in health_app(lambda: None, []).openapi()["paths"]


@pytest.mark.parametrize("service", OURS)
def test_who_uses_the_store_can_reach_it(service: Service) -> None:
    if "LOCKSTEP_STORE_URL" in service.environment:
        host = urlsplit(service.settings.store_url).hostname
        assert set(service.networks) & set(COMPOSE.services[str(host)].networks)
    else:
        assert service.name == "planner", "an embedded store in a container would be lost with it"


def test_the_store_is_reachable_from_inside_only() -> None:
    clickhouse = COMPOSE.services["clickhouse"]

    assert clickhouse.ports == ()
    assert clickhouse.networks == ("store",)
