"""Web processes over a real embedded store, which all tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.store.store import Store
from tests.api.build import Api, bearer, running_api
from tests.fixtures.stores import SharedEngine


@pytest.fixture(scope="package")
def api_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    """The embedded engine of all these tests: to make one and its tables takes most of a second."""
    engine = SharedEngine()
    engine.directory = tmp_path_factory.mktemp("engine")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def shared_store(api_engine: SharedEngine) -> Iterator[Store]:
    """A migrated embedded store for a whole module, empty at its begin; each test uses hosts and jobs of its own."""
    with api_engine.open_store() as store:
        api_engine.spares.prepare(store)
        yield store
        api_engine.spares.give_back(store)


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("shared"), shared_store) as running:
        yield running


@pytest.fixture
def api(tmp_path: Path, shared_store: Store) -> Iterator[Api]:
    with running_api(tmp_path, shared_store) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    return bearer(api.make_token("admin"))
