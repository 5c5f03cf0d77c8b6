"""A web process in which something happened: a job with a slow link, an incident about it and a decision."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, running_api
from tests.api.dashboard.build import decision_of, incident_of
from tests.api.fake_store import AwayStore
from tests.api.views.build import load_job


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, AwayStore()) as running:
        yield running


@pytest.fixture
def acted(api: Api) -> Api:
    """An app with one incident, i1 of `team/run 7`, and decision d1 on it, which waits for a person."""
    now_ns = api.parts.clock.now_ns()
    save_incidents(api.parts.control, [incident_of("i1", "team/run 7", now_ns)], None)
    save_decisions(api.parts.control, [decision_of("d1", "i1", "team/run 7", now_ns)], None)
    return api


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    """An app that all tests of a module share; it knows job train, incident i1 and decision d1."""
    load_job(shared_store, "train")
    with running_api(tmp_path_factory.mktemp("pages"), shared_store) as running:
        now_ns = running.parts.clock.now_ns()
        save_incidents(running.parts.control, [incident_of("i1", "train", now_ns)], None)
        save_decisions(running.parts.control, [decision_of("d1", "i1", "train", now_ns)], None)
        yield running
