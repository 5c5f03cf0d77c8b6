"""What deploy/clickhouse says, and how the testbed's server is made to obey it."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.conftest import REPO
from tests.deploy.compose_file import Compose
from tests.testbed.clickhouse import ClickHouseServer

SERVER_FILE = REPO / "deploy/clickhouse/server.xml"
USERS_FILE = REPO / "deploy/clickhouse/users.xml"
CONFIG_DIR = "/etc/clickhouse-server/"


@dataclass(frozen=True)
class User:
    """A user with a password, as ClickHouse knows it."""

    hash_name: str  # of the element that holds the hash of its password
    profile: dict[str, str]  # settings that hold for its queries
    grants: tuple[str, ...]


def read_users() -> dict[str, User]:
    """Return the users who come over the network."""
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
