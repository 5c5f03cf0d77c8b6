"""Tokens are made, listed and revoked by administrators; a secret is shown once, and each act is in the audit."""

from collections.abc import Iterator

import pytest

from lockstep.state.documents import list_audit
from lockstep.state.tokens import Scope, find_token
from tests.api.build import Api, batch_headers, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore

PATH = "/api/v1/tokens"


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("tokens"), FakeStore()) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    return bearer(api.make_token("admin"))


@pytest.mark.parametrize("scope", ["read", "act", "admin"])
def test_new_token_opens_what_its_scope_says(api: Api, admin: dict[str, str], scope: Scope) -> None:
    answer = api.client.post(PATH, json={"name": "ann", "scope": scope, "why": "on call"}, headers=admin)
    assert answer.status_code == 201
    made = answer.json()
    known = find_token(api.parts.control, made["secret"])
    assert known is not None
    assert (known.id, known.scope, known.name, known.host) == (made["id"], scope, "ann", None)
    line = list_audit(api.parts.control, 1)[0]
    assert (line.who, line.what, line.subject, line.why) == ("test", "create_token", made["id"], "on call")


def test_agent_s_token_reports_for_its_host_and_no_other(api: Api, admin: dict[str, str]) -> None:
    made = api.client.post(PATH, json={"name": "h7", "scope": "ingest", "host": "h7"}, headers=admin).json()
    for agent, status in (("h8", 403), ("h7", 400)):  # 400: let in, and then the batch is empty
        answer = api.client.post("/api/v1/ingest", content=b"", headers=batch_headers(made["secret"], agent=agent))
        assert answer.status_code == status, answer.text


def test_list_shows_tokens_and_no_secret(api: Api, admin: dict[str, str]) -> None:
    secret = api.client.post(PATH, json={"name": "ann"}, headers=admin).json()["secret"]
    answer = api.client.get(PATH, headers=admin)
    assert [token["name"] for token in answer.json()["items"]] == ["test", "ann"]
    assert secret.split("_", 2)[2] not in answer.text
    assert "digest" not in answer.text


def test_list_goes_on_where_a_page_ended(api: Api, admin: dict[str, str]) -> None:
    for name in "abc":
        api.client.post(PATH, json={"name": name}, headers=admin)
    names: list[str] = []
    url: str | None = f"{PATH}?limit=2"
    while url:
        answer = api.client.get(url, headers=admin)
        names += [token["name"] for token in answer.json()["items"]]
        url = answer.links["next"]["url"] if "next" in answer.links else None
    assert names == ["test", "a", "b", "c"]


def test_revoked_token_is_worth_nothing_and_stays_in_the_list(api: Api, admin: dict[str, str]) -> None:
    made = api.client.post(PATH, json={"name": "ann"}, headers=admin).json()
    answer = api.client.delete(f"{PATH}/{made['id']}?why=left", headers=admin)
    assert (answer.status_code, answer.content) == (204, b"")
    check_problem(api.client.get("/api/v1/incidents", headers=bearer(made["secret"])), 401, "unknown-token")
    listed = {token["id"]: token for token in api.client.get(PATH, headers=admin).json()["items"]}
    assert listed[made["id"]]["revoked_ns"] > 0
    line = list_audit(api.parts.control, 1)[0]
    assert (line.what, line.subject, line.why) == ("revoke_token", made["id"], "left")
    assert api.client.delete(f"{PATH}/{made['id']}", headers=admin).status_code == 204, (
        "a second time changes nothing"
    )


def test_token_that_never_was_cannot_be_revoked(api: Api, admin: dict[str, str]) -> None:
    answer = api.client.delete(f"{PATH}/0123456789abcdef", headers=admin)
    assert check_problem(answer, 404, "not-found") == "there is no token '0123456789abcdef'"


@pytest.mark.parametrize(
    ("detail_request", "status", "reason"),
    [
        ({"name": "h7", "scope": "ingest"}, 400, "needs the host that may send with it"),
        ({"name": ""}, 422, "name"),
        ({"name": " x "}, 422, "name"),
        ({"name": "x", "scope": "root"}, 422, "scope"),
        ({"name": "x", "host": "a/b"}, 422, "host"),
        ({"name": "x", "surprise": 1}, 422, "surprise"),
        ([], 422, "body"),
    ],
)
def test_detail_request_that_makes_no_sense_is_refused(
    api: Api, admin: dict[str, str], detail_request: object, status: int, reason: str
) -> None:
    answer = api.client.post(PATH, json=detail_request, headers=admin)
    assert reason in check_problem(answer, status, "bad-input" if status == 400 else "bad-request")
    assert len(api.client.get(PATH, headers=admin).json()["items"]) == 1
