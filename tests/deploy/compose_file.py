"""docker-compose.yml as these tests see it: what each service runs, with which settings, mounts and neighbours.

Beside it what deploy/clickhouse says, and how the testbed's server is made to obey it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from lockstep.config import Settings, load_settings
from tests.conftest import REPO
from tests.testbed.clickhouse import ClickHouseServer

COMPOSE_FILE = REPO / "docker-compose.yml"

Document = dict[str, Any]  # Any: YAML, taken apart below


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith((".", "/"))


@dataclass(frozen=True)
class Port:
    address: str
    published: int
    target: int


@dataclass(frozen=True)
class Service:
    name: str
    image: str
    dockerfile: str | None
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    tmpfs: tuple[str, ...]
    secrets: dict[str, str]  # path in the container -> name of the secret
    networks: tuple[str, ...]
    ports: tuple[Port, ...]
    conditions: dict[str, str]  # service that must come first -> what it must have reached
    health: tuple[str, ...]
    mem_limit: str | None
    read_only: bool
    restart: str | None

    @property
    def is_ours(self) -> bool:
        return self.dockerfile is not None

    @property
    def settings(self) -> Settings:
        return load_settings(self.environment, Path("/dev/null"))


@dataclass(frozen=True)
class Compose:
    services: dict[str, Service]
    volumes: frozenset[str]
    networks: frozenset[str]
    secrets: dict[str, str]  # name -> file in the repository

    @property
    def ours(self) -> list[Service]:
        return [service for service in self.services.values() if service.is_ours]

    def start_order(self) -> list[Service]:
        """Return the services such that each comes after all that it waits for."""
        order: dict[str, Service] = {}
        while len(order) < len(self.services):
            free = [s for s in self.services.values() if s.name not in order and s.conditions.keys() <= order.keys()]
            assert free, f"services wait for each other: {sorted(self.services.keys() - order.keys())}"
            order |= {service.name: service for service in free}
        return list(order.values())


def load_compose() -> Compose:
    document: Document = yaml.safe_load(COMPOSE_FILE.read_text())
    return Compose(
        services={name: _service(name, body) for name, body in document["services"].items()},
        volumes=frozenset(document["volumes"]),
        networks=frozenset(document["networks"]),
        secrets={name: body["file"] for name, body in document["secrets"].items()},
    )


def _service(name: str, body: Document) -> Service:
    return Service(
        name=name,
        image=body["image"],
        dockerfile=body.get("build", {}).get("dockerfile"),
        entrypoint=tuple(body.get("entrypoint", ())),
        command=tuple(body.get("command", ())),
        environment=body.get("environment", {}),
        mounts=tuple(map(_mount, body.get("volumes", ()))),
        tmpfs=tuple(body.get("tmpfs", ())),
        secrets=dict(map(_secret, body.get("secrets", ()))),
        networks=tuple(body.get("networks", ("default",))),
        ports=tuple(map(_port, body.get("ports", ()))),
        conditions={other: wait["condition"] for other, wait in body.get("depends_on", {}).items()},
        health=tuple(body.get("healthcheck", {}).get("test", ())),
        mem_limit=body.get("mem_limit"),
        read_only=body.get("read_only", False),
        restart=body.get("restart"),
    )


def _mount(text: str) -> Mount:
    source, target, *options = text.split(":")
    return Mount(source, target, "ro" in options)


def _secret(entry: str | dict[str, str]) -> tuple[str, str]:
    if isinstance(entry, str):
        return f"/run/secrets/{entry}", entry
    return f"/run/secrets/{entry['target']}", entry["source"]


def _port(text: str) -> Port:
    address, published, target = text.rsplit(":", 2)
    return Port(address, int(published), int(target))


SERVER_FILE = REPO / "deploy/clickhouse/server.xml"
USERS_FILE = REPO / "deploy/clickhouse/users.xml"
CONFIG_DIR = "/etc/clickhouse-server/"


@dataclass(frozen=True)
class User:
    hash_name: str  # of the element that holds the hash of its password
    profile: dict[str, str]  # settings that hold for its queries
    grants: tuple[str, ...]


def read_users() -> dict[str, User]:
    tree = ElementTree.parse(USERS_FILE)
    users = {}
    for element in tree.iterfind("users/*"):
        if (password := element.find("password_sha256_hex")) is not None:
            profile = tree.find(f"profiles/{element.findtext('profile')}")
            assert profile is not None, f"{element.tag} has a profile that does not exist"
            users[element.tag] = User(
                hash_name=password.attrib["incl"],
                profile={setting.tag: setting.text or "" for setting in profile},
                grants=tuple(query.text or "" for query in element.iterfind("grants/query")),
            )
    return users


def served(compose: Compose, directory: Path, secrets: Path) -> ClickHouseServer:
    """Return a server, not yet started, with the files that the compose service mounts, at their paths here.

    Its own user is the testbed's, so that `lockstep` is what the mounted file makes of it.
    """
    server = ClickHouseServer(directory, user="testbed")
    service = compose.services["clickhouse"]
    places = {path: str(secrets / Path(compose.secrets[name]).name) for path, name in service.secrets.items()}
    for mount in service.mounts:
        if mount.is_volume:
            places[mount.target] = str(server.data)
    for mount in service.mounts:
        if mount.target.startswith(CONFIG_DIR):
            text = (REPO / mount.source).read_text()
            for inside, here in places.items():
                text = text.replace(inside, here)
            copy = directory / "run" / mount.target.removeprefix(CONFIG_DIR)
            copy.parent.mkdir(parents=True)
            copy.write_text(text)
    return server
