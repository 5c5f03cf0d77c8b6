"""A fabric of namespaces that is built once for all tests that only look at it."""

from collections.abc import Iterator

import pytest

from tests.collector.sources.probe_fabric import ProbeFabric, probe_fabric


@pytest.fixture(scope="session")
def fabric() -> Iterator[ProbeFabric]:
    with probe_fabric() as made:
        yield made
