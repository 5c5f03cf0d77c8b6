"""Where a store is: `chdb:///directory` in this process, or `http(s)://user@host:8123/database` on a server.

>>> parse_address("http://lockstep@db:8123/telemetry").database
'telemetry'
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from lockstep.errors import BadInput

DEFAULT_DATABASE = "lockstep"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Embedded:
    """A store in a directory, opened by one process at a time."""

    path: Path
    database: str = DEFAULT_DATABASE

    def __str__(self) -> str:
        return f"chdb://{self.path}"


@dataclass(frozen=True, slots=True)
class Server:
    """A ClickHouse server, or one node of a cluster."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str = DEFAULT_DATABASE
    secure: bool = False

    def __str__(self) -> str:
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{self.user}@{self.host}:{self.port}/{self.database}"


Address = Embedded | Server


def parse_address(url: str, password: str = "") -> Address:
    """Return the place a URL names, or raise BadInput with what is wrong about it.

    A password inside the URL wins over the one given beside it; neither ever appears in a message.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"the store's address is not a URL: {error}") from None
    if parts.scheme == "chdb":
        return _embedded(parts)
    if parts.scheme in ("http", "https"):
        return _server(parts, port, password)
    raise BadInput(f"a store is chdb:///directory or http(s)://user@host:port/database, not {parts.scheme or url!r}")


def _embedded(parts: SplitResult) -> Embedded:
    if parts.netloc or not parts.path.strip("/"):
        raise BadInput("an embedded store is chdb:// and an absolute directory: chdb:///var/lib/lockstep/store")
    return Embedded(Path(unquote(parts.path)))


def _server(parts: SplitResult, port: int | None, password: str) -> Server:
    if not parts.hostname:
        raise BadInput("the store's address names no host")
    secure = parts.scheme == "https"
    return Server(
        host=parts.hostname,
        port=port or (8443 if secure else 8123),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password) if parts.password else password,
        database=_database(parts.path.strip("/") or DEFAULT_DATABASE),
        secure=secure,
    )


def _database(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be a database name: letters, digits and _ only")
    return name
