"""A reader's token that is revoked over the API lets nobody in from then on, whatever was believed before."""

from lockstep.control.tokens import create_token
from tests.api.build import Api, bearer, check_problem
from tests.builders import T0

LIST = "/api/v1/incidents"


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
