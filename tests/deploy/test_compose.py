"""docker-compose.yml agrees with itself, with the code and with the files it mounts; so does deploy/clickhouse."""

import re
import subprocess
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from api.routes.health import health_app
from lockstep import __version__
from lockstep.sections import split_listen
from tests.conftest import REPO
from tests.deploy.compose_file import SERVER_FILE, USERS_FILE, Service, load_compose, read_users
from tests.deploy.processes import check_command

COMPOSE = load_compose()
ALL = [pytest.param(service, id=name) for name, service in COMPOSE.services.items()]
SERVING = [service for service in COMPOSE.ours if service.command[0] == "serve"]
CLICKHOUSE = COMPOSE.services["clickhouse"]


@pytest.mark.parametrize("service", ALL)
def test_a_service_is_pinned_limited_and_refers_to_what_is_there(service: Service) -> None:
    assert re.fullmatch(r"[a-z]+(/[a-z-]+)?:\d+\.\d+(\.\d+)*", service.image), "of no registry in particular"
    assert re.fullmatch(r"\d+[mg]", service.mem_limit or "none")
    assert {port.address for port in service.ports} <= {"127.0.0.1"}
    inside = {mount.target for mount in service.mounts} | service.secrets.keys() | set(service.tmpfs)
    assert {value for value in service.environment.values() if value.startswith("/")} <= inside
    for mount in service.mounts:
        if not mount.is_volume:
            assert (REPO / mount.source).exists(), mount.source
            assert mount.read_only, f"{mount.source} could be changed from inside the container"
    for name, condition in service.conditions.items():
        other = COMPOSE.services[name]
        if condition == "service_healthy":
            assert other.health, f"{name} has no health check to pass"
        else:
            assert other.restart is None, f"{name} is started again whenever it completes"


@pytest.mark.parametrize("service", [pytest.param(service, id=service.name) for service in COMPOSE.ours])
def test_our_services_run_commands_that_exist_with_settings_that_are_taken(service: Service) -> None:
    check_command(service.command)
    assert all(name.startswith("LOCKSTEP_") for name in service.environment), "a variable that nobody reads"
    assert service.settings.log_level == "info"  # an unknown variable or a bad value would have raised
    assert service.image == f"lockstep:{__version__}"
    assert service.read_only
    assert service.tmpfs == ("/tmp",)
    if "LOCKSTEP_STORE_URL" in service.environment:
        host = urlsplit(service.settings.store_url).hostname
        assert set(service.networks) & set(COMPOSE.services[str(host)].networks)
    else:
        assert service.name == "planner", "an embedded store in a container would be lost with it"


@pytest.mark.parametrize("service", [pytest.param(service, id=service.name) for service in SERVING])
def test_a_service_comes_back_keeps_its_state_and_answers_its_health_check(service: Service) -> None:
    assert service.restart == "unless-stopped"
    assert str(service.settings.state_dir) in {mount.target for mount in service.mounts}
    (url,) = re.findall(r"http://[^']+", " ".join(service.health))
    section = getattr(service.settings, service.command[1])
    assert urlsplit(url).port == split_listen(section.listen)[1]
    assert urlsplit(url).path in health_app(lambda: None, []).openapi()["paths"]


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="there is no 'oracle'"):
        check_command(["serve", "oracle"])


def test_what_is_declared_is_used_and_services_share_one_control_database() -> None:
    assert {service.command[1] for service in SERVING} == {"api", "analyzer", "planner"}
    assert len({service.settings.control_url for service in SERVING}) == 1
    assert len({mount.source for service in SERVING for mount in service.mounts}) == 1
    services = COMPOSE.services.values()
    assert {mount.source for s in services for mount in s.mounts if mount.is_volume} == COMPOSE.volumes
    assert set(chain.from_iterable(s.networks for s in services)) == COMPOSE.networks
    assert set(chain.from_iterable(s.secrets.values() for s in services)) == COMPOSE.secrets.keys()
    assert {file.rpartition("/")[0] for file in COMPOSE.secrets.values()} == {"deploy/secrets"}
    assert "deploy/secrets/" in (REPO / ".gitignore").read_text().splitlines()


def test_services_start_after_the_migration_and_the_api_is_published_where_clients_look() -> None:
    order = [service.name for service in COMPOSE.start_order()]
    assert order[:2] == ["clickhouse", "migrate"]
    assert COMPOSE.services["migrate"].conditions == {"clickhouse": "service_healthy"}
    first = {"clickhouse": "service_healthy", "migrate": "service_completed_successfully"}
    assert all(COMPOSE.services[name].conditions == first for name in order[2:])
    api = COMPOSE.services["api"]
    host, port = split_listen(api.settings.api.listen)
    (published,) = api.ports
    assert published.target == port
    assert host == "0.0.0.0", "on loopback of the container nobody outside would reach it"
    assert api.settings.collector.server == f"http://{published.address}:{published.published}"
    assert "default" in api.networks, "an internal network publishes nothing"


def test_the_store_is_of_our_line_reachable_from_inside_and_has_room() -> None:
    pinned = re.search(r"^chdb-core==(\d+\.\d+)\.", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert CLICKHOUSE.image == f"clickhouse/clickhouse-server:{pinned[1]}"
    assert (CLICKHOUSE.ports, CLICKHOUSE.networks) == ((), ("store",))
    urls = {s.environment["LOCKSTEP_STORE_URL"] for s in COMPOSE.ours if "LOCKSTEP_STORE_URL" in s.environment}
    (url,) = map(urlsplit, urls)
    assert f"GRANT ALL ON {url.path.strip('/')}.*" in read_users()[str(url.username)].grants
    assert ElementTree.parse(USERS_FILE).findtext("include_from") in CLICKHOUSE.secrets
    assert not re.search(r"<password>|[0-9a-f]{64}", USERS_FILE.read_text())
    server = ElementTree.parse(SERVER_FILE)
    allowed = str(server.findtext("backups/allowed_path"))
    assert allowed.startswith(tuple(mount.target + "/" for mount in CLICKHOUSE.mounts if mount.is_volume))
    assert allowed.endswith("/"), "ClickHouse compares it as a prefix"
    share = float(str(server.findtext("max_server_memory_usage_to_ram_ratio")))
    server_gib = share * int(str(CLICKHOUSE.mem_limit).removesuffix("g"))
    assert all(int(user.profile["max_memory_usage"]) / (1 << 30) < server_gib for user in read_users().values())


def test_the_server_starts_after_orphaned_tokens_were_forgotten_and_also_when_that_fails(tmp_path: Path) -> None:
    (script,) = (mount.source for mount in CLICKHOUSE.mounts if mount.target == "/etc/lockstep/forget_orphans.sh")
    log = tmp_path / "store/abc/abcdef/deduplication_logs/deduplication_log_1.txt"
    log.parent.mkdir(parents=True)
    log.write_text("1\t19675_1_1_0\ttoken\n")
    (tmp_path / "entrypoint").write_text("#!/bin/sh\necho started")
    (tmp_path / "entrypoint").chmod(0o755)
    *shell, line = CLICKHOUSE.entrypoint
    line = line.replace("/var/lib/clickhouse", str(tmp_path)).replace("/entrypoint.sh", str(tmp_path / "entrypoint"))
    for path in (REPO / script, "/nonexistent"):
        words = [*shell, line.replace("/etc/lockstep/forget_orphans.sh", str(path))]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "started\n"
    assert log.read_text().splitlines() == ["1\t19675_1_1_0\ttoken", "2\t19675_1_1_0\ttoken"]
