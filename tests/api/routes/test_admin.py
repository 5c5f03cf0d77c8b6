"""What administrators do: policies nobody overwrites unseen, tokens whose secret is shown once, and the audit."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from lockstep.config import Settings
from lockstep.sections import PlannerSettings
from lockstep.state.documents import list_audit, record
from lockstep.state.policies import current_policy
from lockstep.state.tokens import find_token
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore

POLICY = "/api/v1/policies/planner"


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    planner = PlannerSettings(modes={"replace": "propose"}, nodes_out=3, spares=("s1", "s2"), gpu_hour_price=2.5)
    with running_api(tmp_path_factory.mktemp("policies"), FakeStore(), settings=Settings(planner=planner)) as running:
        yield running


def policy(**changed: object) -> dict[str, Any]:
    told = {"modes": {"reroute": "propose"}, "nodes_per_hour": 1, "restarts_per_hour": 2, "nodes_out": 3}
    return {**told, "share_of_block": 0.5, "gpu_hour_price": None, "spares": [], **changed}


def put(api: Api, headers: dict[str, str], tag: str | None, why: str = "", **changed: object) -> httpx.Response:
    match = {"If-Match": tag} if tag is not None else {}
    return api.client.put(POLICY, json={"policy": policy(**changed), "why": why}, headers=headers | match)


def test_settings_hold_until_somebody_stores_another(api: Api) -> None:
    answer = api.get(POLICY)
    assert (answer.json()["version"], answer.headers["ETag"], answer.json()["who"]) == (0, '"0"', "settings")
    told = answer.json()["policy"]
    assert (told["modes"], told["nodes_out"], told["spares"]) == ({"replace": "propose"}, 3, ["s1", "s2"])
    assert current_policy(api.parts.control) is None
    assert api.get("/api/v1/policies").json()["items"] == [answer.json()]


def test_stored_policy_wins_and_each_version_is_kept_with_who_and_why(api: Api, admin: dict[str, str]) -> None:
    answer = put(api, admin, '"0"', "quiet week", nodes_out=1)
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"1"')
    stored = current_policy(api.parts.control)
    assert stored is not None
    assert (stored.nodes_out, stored.modes) == (1, {"reroute": "propose"})
    read = api.get(POLICY)
    assert read.json() == answer.json()
    assert (read.json()["who"], read.json()["why"], read.headers["ETag"]) == ("test", "quiet week", '"1"')
    put(api, admin, '"1"', "more", nodes_out=2)
    lines = list_audit(api.parts.control, 2, what="change_policy")
    assert [(line.who, line.subject) for line in lines] == [("test", "planner")] * 2
    assert lines[0].why == "more: nodes_out is now 2"
    items = api.get(f"{POLICY}/versions").json()["items"]
    assert [(item["version"], item["policy"]["nodes_out"]) for item in items] == [(2, 2), (1, 1)]
    assert len(api.get(f"{POLICY}/versions", {"limit": 1}).json()["items"]) == 1


def test_change_of_what_was_not_seen_or_nobody_would_keep_is_refused(api: Api, admin: dict[str, str]) -> None:
    answer = put(api, admin, None)
    assert check_problem(answer, 428, "precondition-required") == 'say which version you saw: If-Match: "0"'
    for tag in ("*", "0", 'W/"0"', '"x"', '"7"', '"0", "1"'):
        check_problem(put(api, admin, tag), 412, "changed-meanwhile")
    put(api, admin, '"0"')
    expected = "policy planner is at version 1 by now, not 0: read it again"
    assert check_problem(put(api, admin, '"0"', nodes_out=9), 412, "changed-meanwhile") == expected
    assert api.get(POLICY).json()["policy"]["nodes_out"] == 3
    answer = put(api, admin, '"1"', modes={"replace": "execute"})
    said = "modes says execute for ['replace'], and planner.controller names nobody who would"
    assert check_problem(answer, 400, "bad-input") == said
    answer = api.client.put(POLICY, json={"policy": {"nodes_out": 1}}, headers=admin | {"If-Match": '"1"'})
    assert "body.policy.share_of_block: Field required" in check_problem(answer, 422, "bad-request")
    assert check_problem(api.get("/api/v1/policies/x"), 404, "not-found") == "there is no policy 'x', only 'planner'"


def test_policy_that_makes_no_sense_is_refused(api: Api, admin: dict[str, str]) -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"nodes_out": -1}, "greater than or equal to 0"),
        ({"share_of_block": 1.1}, "less than or equal to 1"),
        ({"modes": {"explode": "execute"}}, "modes.explode"),
        ({"modes": {"replace": "maybe"}}, "'observe', 'propose' or 'execute'"),
        ({"spares": ["a", "a"]}, "a spare is named twice"),
        ({"spares": [" a"]}, "empty or has blanks"),
        ({"gpu_hour_price": -1}, "greater than or equal to 0"),
        ({"surprise": 1}, "surprise"),
    ]
    for changed, reason in refused:
        assert reason in check_problem(put(api, admin, '"0"', "", **changed), 422, "bad-request")
    assert current_policy(api.parts.control) is None


TOKENS = "/api/v1/tokens"


def test_new_token_opens_what_its_scope_says(api: Api, admin: dict[str, str]) -> None:
    for scope, host in (("read", None), ("act", None), ("admin", None), ("ingest", "h7")):
        asked = {"name": "ann", "scope": scope, "host": host, "why": "on call"}
        answer = api.client.post(TOKENS, json=asked, headers=admin)
        assert answer.status_code == 201
        made = answer.json()
        known = find_token(api.parts.control, made["secret"])
        assert known is not None
        assert (known.id, known.scope, known.name, known.host) == (made["id"], scope, "ann", host)
        line = list_audit(api.parts.control, 1)[0]
        assert (line.who, line.what, line.subject, line.why) == ("test", "create_token", made["id"], "on call")


def test_list_shows_tokens_page_by_page_and_no_secret(api: Api, admin: dict[str, str]) -> None:
    secrets = [api.client.post(TOKENS, json={"name": name}, headers=admin).json()["secret"] for name in "abc"]
    names: list[str] = []
    url: str | None = f"{TOKENS}?limit=2"
    while url:
        answer = api.client.get(url, headers=admin)
        names += [token["name"] for token in answer.json()["items"]]
        assert not [secret for secret in secrets if secret.split("_", 2)[2] in answer.text]
        assert "digest" not in answer.text
        url = answer.links["next"]["url"] if "next" in answer.links else None
    assert names == ["test", "a", "b", "c"]


def test_revoked_token_is_worth_nothing_and_stays_in_the_list(api: Api, admin: dict[str, str]) -> None:
    made = api.client.post(TOKENS, json={"name": "ann"}, headers=admin).json()
    answer = api.client.delete(f"{TOKENS}/{made['id']}?why=left", headers=admin)
    assert (answer.status_code, answer.content) == (204, b"")
    check_problem(api.client.get("/api/v1/incidents", headers=bearer(made["secret"])), 401, "unknown-token")
    listed = {token["id"]: token for token in api.client.get(TOKENS, headers=admin).json()["items"]}
    assert listed[made["id"]]["revoked_ns"] > 0
    line = list_audit(api.parts.control, 1)[0]
    assert (line.what, line.subject, line.why) == ("revoke_token", made["id"], "left")
    again = api.client.delete(f"{TOKENS}/{made['id']}", headers=admin)
    assert again.status_code == 204, "a second time changes nothing"
    answer = api.client.delete(f"{TOKENS}/0123456789abcdef", headers=admin)
    assert check_problem(answer, 404, "not-found") == "there is no token '0123456789abcdef'"


def test_request_that_makes_no_sense_is_refused(api: Api, admin: dict[str, str]) -> None:
    refused: list[tuple[object, int, str]] = [
        ({"name": "h7", "scope": "ingest"}, 400, "needs the host that may send with it"),
        ({"name": ""}, 422, "name"),
        ({"name": " x "}, 422, "name"),
        ({"name": "x", "scope": "root"}, 422, "scope"),
        ({"name": "x", "host": "a/b"}, 422, "host"),
        ({"name": "x", "surprise": 1}, 422, "surprise"),
        ([], 422, "body"),
    ]
    for request, status, reason in refused:
        answer = api.client.post(TOKENS, json=request, headers=admin)
        assert reason in check_problem(answer, status, "bad-input" if status == 400 else "bad-request")
    assert len(api.client.get(TOKENS, headers=admin).json()["items"]) == 1


AUDIT_LINES = [(who, what) for who in ("ann", "bob", "planner") for what in ("approve", "undo", "isolate", "release")]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("audit"), FakeStore()) as running:
        for number, (who, what) in enumerate(AUDIT_LINES):
            record(running.parts.control, who=who, what=what, subject=f"d{number}", why="told so", now_ns=number)
        running.get("/api/v1/audit")  # makes the reader's token, which is a line too
        yield running


def test_newest_line_comes_first_and_a_foreign_cursor_is_refused(audited: Api) -> None:
    items = audited.get("/api/v1/audit").json()["items"]
    assert [line["what"] for line in items[:2]] == ["create_token", "release"]
    assert items[1]["who"] == "planner"
    assert (items[1]["subject"], items[1]["why"]) == ("d11", "told so")
    check_problem(audited.get("/api/v1/audit", {"cursor": "x"}), 400, "bad-input")


@examples(max_examples=20, deadline=None)
@given(st.integers(1, 15), st.sampled_from([{}, {"who": "ann"}, {"who": "x"}, {"what": "undo"}, {"subject": "d5"}]))
def test_pages_together_are_all_that_were_asked_for(audited: Api, limit: int, narrowed: dict[str, str | int]) -> None:
    every = audited.get("/api/v1/audit").json()["items"]
    whole = audited.get("/api/v1/audit", narrowed).json()["items"]
    assert whole == [line for line in every if narrowed.items() <= line.items()]
    assert audited.walk("/api/v1/audit", narrowed | {"limit": limit}) == whole
