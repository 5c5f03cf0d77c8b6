"""A fake Kubernetes that is served, and a client of the real library for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from planner.controllers.kubernetes_api import quiet_client
from tests.planner.controllers.fake_kubernetes import FakeKubernetes, fill, serve


@pytest.fixture
def fake() -> FakeKubernetes:
    fake = FakeKubernetes()
    fill(fake)
    return fake


@pytest.fixture
def api(fake: FakeKubernetes) -> Iterator[Any]:
    client = pytest.importorskip("kubernetes.client", reason="needs the extra lockstep[kubernetes]")
    with serve(fake) as url:
        made = quiet_client(client.Configuration(host=url))
        yield made
        made.rest_client.close()
