"""Backup into the store's own backup directory, and restore into an empty store."""

import re

from lockstep.errors import BadInput, StoreRefused
from lockstep.store.layout import Layout
from lockstep.store.migrations import applied_migrations, check_migrated
from lockstep.store.store import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A server reads and writes backups only where its own configuration (backups.allowed_path) lets it.
_BACKUP_ALREADY_EXISTS = 598


def backup(store: Store, layout: Layout, name: str) -> None:
    """Write all tables of one node under the given name; the store stays open for reading and writing."""
    check_migrated(store, layout)
    try:
        store.command(f"BACKUP DATABASE {layout.local} TO File('{_checked(name)}')")
    except StoreRefused as error:
        if error.code == _BACKUP_ALREADY_EXISTS:
            raise BadInput(f"a backup named {name!r} exists already") from error
        raise


def restore(store: Store, layout: Layout, name: str) -> None:
    """Fill an empty store from a backup of that name; a store that holds anything is left as it is."""
    checked = _checked(name)
    if applied_migrations(store, layout):
        raise BadInput(
            f"the store at {store.address} is not empty: a backup is restored into a new directory or database"
        )
    store.command(f"RESTORE DATABASE {layout.local} FROM File('{checked}')")
    check_migrated(store, layout)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot name a backup: letters, digits, '.', '_' and '-', no path")
    return name
