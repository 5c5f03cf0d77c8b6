"""Web processes over a real embedded store, which all tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase, open_control
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from tests.api.build import Api, running_api


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A migrated embedded store for a whole module; each test uses hosts and jobs of its own."""
    with open_store(f"chdb://{tmp_path_factory.mktemp('api') / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        yield store


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    """An app that all tests of a module share, for those that leave nothing behind."""
    with running_api(tmp_path_factory.mktemp("shared"), shared_store) as running:
        yield running


@pytest.fixture
def api(tmp_path: Path, shared_store: Store) -> Iterator[Api]:
    """An app of one's own."""
    with running_api(tmp_path, shared_store) as running:
        yield running


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database
