"""Nobody reads without a token unless reads are open; found out for every route there is, also for those to come."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute

from api import routes
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.store.store import Store
from tests.api.build import Api, bearer, check_problem, running_api

FOR_AGENTS = {("POST", f"/api/v1/{path}") for path in ("ingest", "intake/alertmanager", "intake/gpud")} | {
    ("POST", "/api/v1/paths/hosts/{host}/count")
}
FOR_ACTORS = {
    ("POST", "/api/v1/decisions/{decision_id}/{kind}"),
    ("PUT", "/api/v1/incidents/{incident_id}/outcome"),
}
FOR_PROBES = {("GET", path) for path in ("/healthz", "/readyz", "/version", "/metrics")}


def all_routes() -> list[tuple[str, str]]:
    """Return method and path of every route of every module, those hidden from the schema too."""
    modules = [
        importlib.import_module(f"api.routes.{module.name}") for module in pkgutil.iter_modules(routes.__path__)
    ]
    found = [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]
    return sorted((method, route.path) for route in found for method in route.methods or ())


READS = [route for route in all_routes() if route not in FOR_AGENTS | FOR_ACTORS | FOR_PROBES]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "x", path)


@pytest.fixture(scope="module")
def open_api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    with running_api(
        tmp_path_factory.mktemp("open"), shared_store, settings=Settings(api=ApiSettings(open_reads=True))
    ) as running:
        yield running


def test_app_serves_the_routes_of_all_modules(shared_api: Api) -> None:
    served = {
        (method.upper(), path)
        for path, methods in shared_api.client.get("/openapi.json").json()["paths"].items()
        for method in methods
    }
    assert served | {("GET", "/")} == {(method, path.replace(":path", "")) for method, path in all_routes()}
    assert ("GET", "/api/v1/incidents") in READS


@pytest.mark.parametrize(("method", "path"), READS)
def test_read_without_a_token_is_refused(shared_api: Api, method: str, path: str) -> None:
    check_problem(shared_api.client.request(method, filled(path)), 401, "no-token")


@pytest.mark.parametrize(("method", "path"), READS)
def test_read_with_a_collector_s_token_is_refused(shared_api: Api, method: str, path: str) -> None:
    answer = shared_api.client.request(method, filled(path), headers=bearer(shared_api.make_token("ingest", "h0")))
    assert check_problem(answer, 403, "wrong-scope") == "a token of scope ingest does not allow reading"


@pytest.mark.parametrize(("method", "path"), sorted(FOR_ACTORS))
def test_act_needs_a_token_of_its_own_scope_also_where_reads_are_open(open_api: Api, method: str, path: str) -> None:
    assert (method, path) in all_routes()
    check_problem(open_api.client.request(method, filled(path)), 401, "no-token")
    for token in (open_api.make_token("read"), open_api.make_token("ingest", "h0")):
        answer = open_api.client.request(method, filled(path), headers=bearer(token))
        assert "does not allow acting" in check_problem(answer, 403, "wrong-scope")


@pytest.mark.parametrize(("method", "path"), READS)
def test_read_needs_no_token_where_reads_are_open(open_api: Api, method: str, path: str) -> None:
    assert open_api.client.request(method, filled(path)).status_code in (200, 404)


@pytest.mark.parametrize(("method", "path"), sorted(FOR_AGENTS))
def test_open_reads_do_not_open_the_way_in(open_api: Api, method: str, path: str) -> None:
    check_problem(open_api.client.request(method, path, content=b"x"), 401, "no-token")


def test_scheme_may_be_written_in_any_case(shared_api: Api) -> None:
    token = shared_api.make_token("read")
    answer = shared_api.client.get("/api/v1/incidents", headers={"Authorization": f"bEARER {token}"})
    assert answer.status_code == 200
