"""Silences over HTTP: who may act makes and ends them; a silence over everything is refused."""

from typing import Any

import pytest

from lockstep.control.audit import list_audit
from tests.api.build import Api, bearer, check_problem

BODY: dict[str, Any] = {"matchers": {"component": "nic:h3/*"}, "lasts_s": 7200, "why": "cable is on its way"}


@pytest.fixture
def actor(api: Api) -> dict[str, str]:
    return bearer(api.make_token("act"))


def test_silence_is_made_listed_and_ended(api: Api, actor: dict[str, str]) -> None:
    made = api.client.post("/api/v1/silences", json=BODY, headers=actor)
    assert made.status_code == 201
    silence = made.json()
    assert (silence["who"], silence["matchers"]["class"]) == ("test", "*")
    assert silence["until_ns"] - silence["made_ns"] == 7200 * 10**9
    assert [item["id"] for item in api.get("/api/v1/silences").json()["items"]] == [silence["id"]]
    ended = api.client.delete(f"/api/v1/silences/{silence['id']}?why=mended", headers=actor)
    assert ended.status_code == 200
    assert api.get("/api/v1/silences").json() == {"items": [], "next": None}
    assert [item["id"] for item in api.get("/api/v1/silences", {"ended": "true"}).json()["items"]] == [silence["id"]]
    lines = {line.what: (line.who, line.why) for line in list_audit(api.parts.control, 9)}
    assert lines["create_silence"] == ("test", "cable is on its way")
    assert lines["end_silence"] == ("test", "mended")


@pytest.mark.parametrize(
    "changes",
    [{"matchers": {}}, {"matchers": {"job": "*"}}, {"lasts_s": 0}, {"lasts_s": 1e9}, {"lasts_s": "x"}, {"colour": 1}],
)
def test_silence_that_says_nothing_or_never_ends_is_refused(
    api: Api, actor: dict[str, str], changes: dict[str, Any]
) -> None:
    check_problem(api.client.post("/api/v1/silences", json=BODY | changes, headers=actor), 422, "bad-request")
    assert api.get("/api/v1/silences").json()["items"] == []


def test_readers_do_not_silence(api: Api, actor: dict[str, str]) -> None:
    reader = bearer(api.make_token("read"))
    check_problem(api.client.post("/api/v1/silences", json=BODY, headers=reader), 403, "wrong-scope")
    check_problem(api.client.delete("/api/v1/silences/0123456789abcdef", headers=reader), 403, "wrong-scope")
    check_problem(api.client.delete("/api/v1/silences/0123456789abcdef", headers=actor), 404, "not-found")
    check_problem(api.client.delete("/api/v1/silences/no-id", headers=actor), 422, "bad-request")


def test_pages_lead_on(api: Api, actor: dict[str, str]) -> None:
    for seconds in (60, 120, 180):
        api.client.post("/api/v1/silences", json=BODY | {"lasts_s": seconds * 1000}, headers=actor)
    first = api.get("/api/v1/silences", {"limit": 2}).json()
    rest = api.get("/api/v1/silences", {"limit": 2, "cursor": first["next"]}).json()
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)
