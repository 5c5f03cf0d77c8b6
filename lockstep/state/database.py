"""Opens the control database, SQLite or PostgreSQL, and runs transactions in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from lockstep.errors import BadInput, ControlAway, SealBroken
from lockstep.state.tables import DELIVERIES, LEASES, prepare_schema


class Keys(Protocol):
    """Seals and opens; SealBroken where a key is missing."""

    @property
    def file(self) -> Path | None:
        """Where the keys are."""

    def seal(self, content: bytes, about: str) -> str:
        """Return the content sealed with the newest key."""

    def unseal(self, sealed: str, about: str) -> bytes:
        """Return what was sealed."""

    def is_newest(self, sealed: str) -> bool:
        """Return whether a seal is of the key that would be taken today."""


class NoKeys:
    """For processes that neither make receivers of alerts nor send to them."""

    file = None

    def seal(self, content: bytes, about: str) -> NoReturn:
        raise SealBroken(f"{about} cannot be sealed: this process was given no key file")

    def unseal(self, sealed: str, about: str) -> NoReturn:
        raise SealBroken("this process was given no key file")

    def is_newest(self, sealed: str) -> bool:
        return False


LOCK_WAIT_MS = 10_000  # our transactions take milliseconds: who waits this long has a stuck neighbour
CONNECT_WAIT_S = 5  # libpq alone would wait for a silent host until TCP gives up, minutes later

_NO_KEYS = NoKeys()
_SQLITE_POOL = 40  # as many as Starlette has worker threads

SQLITE_PRAGMAS = (
    "PRAGMA journal_mode = WAL",  # readers and the writer do not wait for each other
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",  # with NORMAL a power cut takes back what was acknowledged
)


class ControlDatabase:
    """An open control database; may be shared between threads, not carried across a fork."""

    def __init__(self, engine: Engine, url: URL, keys: Keys) -> None:
        self._engine = engine
        self._reading = engine.execution_options(sqlite_begin="BEGIN")
        self._password = str(url.password or url.query.get("password") or "")
        self.name = _name_of(url)
        self.keys = keys  # of what is sealed in it

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Give a transaction that may write: committed at the end of the block, undone when it raises.

        On SQLite it waits for other writers first, so what is read in it stays true until it ends. On PostgreSQL
        rows that a write depends on are selected with `with_for_update`.
        """
        with self._say_when_away(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a transaction that only reads, and never waits for a writer."""
        with self._say_when_away(), self._reading.begin() as connection:
            yield connection

    def empty_log(self) -> None:
        """Move what was written from SQLite's write-ahead log into its file, unless others still read there."""
        if self._engine.dialect.name == "sqlite":
            with self._say_when_away(), closing(self._engine.raw_connection()) as driver:
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections; call it once nobody uses the database any more."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _say_when_away(self) -> Iterator[None]:
        try:
            yield
        except (DataError, OverflowError, UnicodeEncodeError) as error:
            raise BadInput(f"the control database cannot hold this value: {_first_line(error)}") from error
        except (IntegrityError, NotSupportedError, ProgrammingError):
            raise  # our own mistake: trying again later would only hide it
        except (DBAPIError, NoFreeConnection) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> ControlAway:
        reason = _first_line(error)
        if self._password:
            reason = reason.replace(self._password, "***")
        # SQLite reports a file that is damaged, or none of its own, as the plain base class.
        advice = "; it is damaged, restore it from a backup" if type(error) is DatabaseError else ""
        return ControlAway(f"the control database {self.name} cannot be used: {reason}{advice}")

    def _prepare(self) -> None:
        try:
            with self.begin() as connection:
                prepare_schema(connection)
        except ProgrammingError as error:  # while opening this is a missing grant or an unknown option of the URL
            raise self._away(error) from error


def open_control(url: str, *, lock_wait_ms: int = LOCK_WAIT_MS, keys: Keys = _NO_KEYS) -> ControlDatabase:
    """Return the control database at the URL, its schema made or brought up to date.

    The URL is sqlite:///relative/path, sqlite:////absolute/path or postgresql://user:password@host/name. Only who
    makes receivers of alerts, or sends to them, needs the keys.
    """
    parsed = _parse(url)
    make_engine = _sqlite_engine if parsed.drivername == "sqlite" else _postgres_engine
    db = ControlDatabase(make_engine(parsed, lock_wait_ms), parsed, keys)
    try:
        if parsed.drivername == "sqlite":
            _make_sqlite_file(db, Path(str(parsed.database)))
        db._prepare()
    except BaseException:
        db.close()
        raise
    return db


def _parse(url: str) -> URL:
    expected = "expected sqlite:///path or postgresql://user:password@host/name"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Neither the URL nor the cause is shown: what cannot be taken apart may have its password anywhere.
        raise BadInput(f"the URL of the control database cannot be read; {expected}") from None
    if parsed.drivername not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise BadInput(f"the control database cannot be kept in {parsed.drivername}; {expected}")
    if parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise BadInput(f"the control database needs a file, so that it survives a restart; {expected}")
    if "@" in (parsed.host or ""):
        raise BadInput("the password in the URL of the control database has a bare @; write it as %40")
    return parsed


def _name_of(url: URL) -> str:
    """Return what the database is called in messages; put together from parts that hold no password."""
    if url.drivername == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or "the local socket"
    port = f":{url.port}" if url.port else ""
    return f"{url.database} at {host if isinstance(host, str) else ','.join(host)}{port}"


def _sqlite_engine(url: URL, lock_wait_ms: int) -> Engine:
    # The web process asks from forty threads at once; a connection beyond the pool would be opened for each question.
    engine = create_engine(url, pool_size=_SQLITE_POOL)

    @event.listens_for(engine, "connect")
    def configure(driver: Any, record: object) -> None:  # Any: the driver's own connection
        driver.isolation_level = None  # we begin transactions: the driver would begin too late, and only to read
        for pragma in (f"PRAGMA busy_timeout = {lock_wait_ms}", *SQLITE_PRAGMAS):
            driver.execute(pragma)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN IMMEDIATE"))

    return engine


def _make_sqlite_file(db: ControlDatabase, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            path.touch(mode=0o600)  # SQLite gives its other files the same mode
        elif (seen := path.stat()).st_uid == os.geteuid() and seen.st_mode & 0o077:
            path.chmod(0o600)  # made by an earlier release
        with _directory_lock(path.parent), db.read():
            pass  # the first connection makes the file and turns its write-ahead log on
    except OSError as error:
        raise ControlAway(f"the control database {db.name} cannot be used: {error}") from error


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    # While one process turns the write-ahead log on, SQLite tells a second one "locked" without waiting at all.
    # The directory is locked because closing a second handle on the file itself would drop SQLite's own locks.
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _postgres_engine(url: URL, lock_wait_ms: int) -> Engine:
    wait = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_WAIT_S}
    # A connection may have died since its last use: the server was restarted, a firewall forgot it.
    engine = create_engine(url.set(drivername="postgresql+psycopg"), connect_args=wait, pool_pre_ping=True)

    @event.listens_for(engine, "connect")
    def configure(driver: Any, record: object) -> None:  # Any: the driver's own connection
        driver.execute(f"SET lock_timeout = {lock_wait_ms}")
        driver.commit()  # else the first rollback would take the setting back

    return engine


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().split("\n", 1)[0]


COUNTED = ("waiting", "sending", "failed")  # those that were delivered are history


def count_undelivered(db: ControlDatabase) -> dict[tuple[str, str], int]:
    """Return how many messages of the queue each receiver has in each state that is not the good end."""
    columns = (DELIVERIES.c.target, DELIVERIES.c.state)
    query = select(*columns, func.count().label("messages")).where(DELIVERIES.c.state.in_(COUNTED)).group_by(*columns)
    with db.read() as connection:
        return {(row.target, row.state): row.messages for row in connection.execute(query)}


def lease_ends(db: ControlDatabase) -> dict[str, int]:
    """Return by lease when it ends, 0 where it was let go; a lease that nobody ever took is not there."""
    with db.read() as connection:
        return {row.name: int(row.expires_ns) for row in connection.execute(select(LEASES))}
