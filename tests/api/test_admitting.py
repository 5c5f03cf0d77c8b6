"""Whoever asks for a list that others have asked for before is let in, answered and refused as they were."""

import pytest

from lockstep.control.incidents import save_incidents
from lockstep.control.tokens import create_token
from tests.api.build import Api, bearer, check_problem
from tests.builders import T0
from tests.lockstep.control.build import incident

LIST = "/api/v1/incidents"
_OF_EACH = ("date", "x-request-id")


def test_token_that_is_revoked_over_the_api_is_worth_nothing_at_once(api: Api) -> None:
    control = api.parts.control
    secret = create_token(control, scope="read", host=None, name="r", now_ns=T0)
    admin = bearer(create_token(control, scope="admin", host=None, name="a", now_ns=T0))
    assert api.client.get(LIST, headers=bearer(secret)).status_code == 200
    assert api.client.delete(f"/api/v1/tokens/{secret.split('_')[1]}", headers=admin).status_code < 300
    check_problem(api.client.get(LIST, headers=bearer(secret)), 401, "unknown-token")


def test_who_may_not_read_is_asked_each_time(api: Api) -> None:
    secret = create_token(api.parts.control, scope="ingest", host="h0", name="agent", now_ns=T0)
    for _ in range(2):
        check_problem(api.client.get(LIST, headers=bearer(secret)), 403, "wrong-scope")


@pytest.mark.parametrize("query", ["", "?limit=1", "?state=open&limit=2", "?job=nobody"])
def test_second_answer_is_as_the_first(api: Api, query: str) -> None:
    save_incidents(api.parts.control, [incident(f"i{number}") for number in range(3)], None)
    first, second = (api.get(LIST + query) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert second.json() == first.json()
    shown = [
        {name: value for name, value in each.headers.items() if name not in _OF_EACH} for each in (first, second)
    ]
    assert shown[0] == shown[1]


def test_list_that_others_have_asked_for_is_refused_to_strangers(api: Api) -> None:
    assert api.get(LIST).status_code == 200
    check_problem(api.client.get(LIST), 401, "no-token")
    check_problem(api.client.get(LIST, headers=bearer("lks_nothing")), 401, "unknown-token")
    agent = create_token(api.parts.control, scope="ingest", host="h0", name="agent", now_ns=T0)
    check_problem(api.client.get(LIST, headers=bearer(agent)), 403, "wrong-scope")
    page = api.client.get(LIST, headers={"Accept": "text/html"})
    assert page.status_code in (303, 401)


def test_bad_query_is_refused_each_time(api: Api) -> None:
    for _ in range(2):
        assert api.get(LIST + "?limit=nothing").status_code == 422
